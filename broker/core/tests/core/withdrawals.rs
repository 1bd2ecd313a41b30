//! Withdrawn permissions: leases finish, drain or stop, as the documents say.

use comity_core::command::{ReclaimLeases, RenewLease};
use comity_core::demand::Share;
use comity_core::feasibility::spared;
use comity_core::inventory::Sharing;
use comity_core::proposal::ProposedReclaim;
use comity_core::reclaim::ReclaimReason;
use comity_core::refusal::Code;
use comity_core::scheduler::Reclaimer;
use comity_core::{Command, Millis, State};
use comity_policy::{BundleSource, SourceFile};
use comity_types::{EndReason, LeaseId, LeaseState, LeaseTreatment, RequestState};

use super::federation::{Federation, device, offer, spec, terms};
use super::policy_changes::unforced;
use super::policy_plans::plan_of;
use super::reclaim::{GRACE, MINUTE, at, used, yielding};
use super::user_requests::revoke_alice;

const LENDS: &str = "lends: [{classes: [big, small]}]";

/// The test federation's documents, in which `north` lends nothing and treats its leases so.
fn withdrawn(treatment: LeaseTreatment) -> String {
    format!("lends: [], onWithdrawal: {}", treatment.as_str())
}

impl Federation {
    /// What the reclaimer of a new leader proposes now.
    fn due(&self) -> Vec<ProposedReclaim> {
        Reclaimer::default().due_reclaims(&self.state, self.state.log_time)
    }

    /// Lets reclaims and deadlines happen until the lease ends, and returns when.
    fn runs_until(&mut self, lease: LeaseId) -> u64 {
        for donor in ["north", "south"] {
            let needed = self.needs(donor);
            self.reclaim(needed);
        }
        for _ in 0..10 {
            let held = &self.state.leases[&lease];
            if let Some(ending) = held.ending_at {
                return ending.0;
            }
            let due = held.due().unwrap().0;
            self.expire_at(due);
        }
        panic!("{lease} does not end")
    }
}

fn lent() -> (Federation, LeaseId) {
    let mut federation = Federation::ready();
    let (_, lease) = federation.running(at("north", yielding(2, 0)));
    (federation, lease)
}

fn stop(code: &str) -> ReclaimReason {
    ReclaimReason::PolicyChanged { code: code.into(), treatment: LeaseTreatment::Stop }
}

#[test]
fn a_donor_stops_its_leases_at_once() {
    let (mut federation, lease) = lent();
    federation.with_terms(LENDS, &withdrawn(LeaseTreatment::Stop));
    let due = federation.due();
    assert_eq!(due, [ProposedReclaim { lease, reason: stop("class-not-lent") }], "it does not wait five seconds");
    federation.reclaim(due);
    let ended = &federation.state.leases[&lease];
    assert_eq!((ended.state, ended.end_reason), (LeaseState::Ending, Some(EndReason::Reclaimed)));
    let reclaim = ended.reclaim.as_ref().unwrap();
    assert_eq!((reclaim.grace, reclaim.deadline), (Millis(0), reclaim.since));
    assert_eq!(federation.state.requests[&ended.request].state, RequestState::Queued, "it may run elsewhere");
}

#[test]
fn a_lease_that_may_finish_runs_to_the_end_of_its_term_and_is_not_renewed() {
    let (mut federation, lease) = lent();
    let until = federation.state.leases[&lease].expires_at.unwrap().0;
    federation.with_terms(LENDS, &withdrawn(LeaseTreatment::Finish));
    assert!(federation.needs("north").is_empty());
    let renew = RenewLease { lease, duration: Millis(0), may_shorten: false };
    assert_eq!(federation.refused(Command::RenewLease(renew)).code, Code::PolicyDenied);
    federation.expire_at(until - 2);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
    federation.expire_at(until);
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::Expired));
}

#[test]
fn a_tighter_value_never_lets_a_lease_run_longer() {
    let ends = LeaseTreatment::ALL.map(|treatment| {
        let (mut federation, lease) = lent();
        federation.with_terms(LENDS, &withdrawn(treatment));
        let now = federation.state.log_time.0;
        federation.runs_until(lease) - now
    });
    assert!(ends[0] > ends[1] && ends[1] > ends[2], "{ends:?}");
    assert!((GRACE..GRACE + MINUTE).contains(&ends[1]) && ends[2] < 10, "{ends:?}");

    // Nor does a policy that becomes tighter while a notice runs; one that becomes looser spares the lease.
    for (first, then, expected) in [
        (LeaseTreatment::Drain, LeaseTreatment::Stop, LeaseState::Ending),
        (LeaseTreatment::Drain, LeaseTreatment::Drain, LeaseState::Reclaiming),
        (LeaseTreatment::Drain, LeaseTreatment::Finish, LeaseState::Active),
        (LeaseTreatment::Finish, LeaseTreatment::Drain, LeaseState::Reclaiming),
    ] {
        let (mut federation, lease) = lent();
        for treatment in [first, then] {
            federation.with_terms(LENDS, &withdrawn(treatment));
            let needed = federation.needs("north");
            federation.reclaim(needed);
        }
        assert_eq!(federation.state.leases[&lease].state, expected, "{first:?}, then {then:?}");
        assert!(federation.needs("north").is_empty() && spared(&federation.state).is_empty());
    }
}

#[test]
fn an_origin_cannot_let_leases_finish_that_the_donor_stops() {
    let (mut federation, lease) = lent();
    let source = terms(LENDS, &withdrawn(LeaseTreatment::Stop));
    let text = source.files[0]
        .text
        .replace(
            "clusters: [west]\n---\napiVersion: policy.comity.dev/v1\nkind: Agreement",
            "clusters: []\n  onWithdrawal: finish\n---\napiVersion: policy.comity.dev/v1\nkind: Agreement",
        )
        .replace("classes: [big, small]}\n", "classes: [small], onWithdrawal: finish}\n");
    assert_eq!(text.matches("onWithdrawal: finish").count(), 2, "{text}");
    let files = vec![SourceFile { path: "all.yaml".into(), text }];
    federation.ok(Command::ApplyPolicy(unforced(BundleSource::of_files(files))));
    assert_eq!(federation.needs("north"), [ProposedReclaim { lease, reason: stop("class-not-lent") }]);
}

#[test]
fn a_removed_document_keeps_its_word() {
    const AGREEMENT: &str = "---\napiVersion: policy.comity.dev/v1\nkind: Agreement\nmetadata: {name: loan}\nspec: {borrowers: [western], lenders: [lenders], classes: [big, small]}\n";
    const RULE: &str = "---\napiVersion: policy.comity.dev/v1\nkind: Rule\nmetadata: {name: unrelated}\nspec: {warn: 'donor.name == \"south\"', message: Hello}\n";
    for (said, expected) in [
        (LeaseTreatment::Finish, None),
        (LeaseTreatment::Drain, Some(LeaseTreatment::Drain)),
        (LeaseTreatment::Stop, Some(LeaseTreatment::Stop)),
    ] {
        let (mut federation, lease) = lent();
        let with = AGREEMENT.replace("small]}", &format!("small], onWithdrawal: {}}}", said.as_str()));
        federation.with_terms(AGREEMENT, &with);
        // Removed, and another change after that.
        for replacement in ["", RULE] {
            federation.with_terms(AGREEMENT, replacement);
            let found = federation.needs("north").into_iter().map(|it| it.reason).next();
            let expected =
                expected.map(|treatment| ReclaimReason::PolicyChanged { code: "no-agreement".into(), treatment });
            assert_eq!(found, expected, "{said:?}");
        }
        // A snapshot keeps it, too.
        let stored = serde_json::to_value(&federation.state).unwrap();
        let restored: State = serde_json::from_value(stored).unwrap();
        let of = |state: &State| state.policy.as_ref().unwrap().removed.clone();
        assert_eq!(of(&restored), of(&federation.state));
        assert_eq!(of(&restored).is_empty(), said == LeaseTreatment::Drain, "the default need not be kept");
        // Without leases under it, nothing is kept.
        federation.runs_until(lease);
        federation.stop(lease);
        federation.with_terms(AGREEMENT, "");
        assert!(of(&federation.state).is_empty());
    }
}

#[test]
fn a_stop_ends_leases_that_start_and_those_under_reclaim() {
    let mut federation = Federation::ready();
    let (_, reclaimed) = federation.running(at("south", yielding(3, 0)));
    federation.offer("south", used(2, &[("s1", 4, 2)]));
    let needed = federation.needs("south");
    assert_eq!(federation.reclaim(needed), [reclaimed]);
    federation.submit(at("north", spec(1, Share::Whole, "big")));
    let starting = federation.place().into_iter().find(|id| *id != reclaimed).unwrap();
    assert_eq!(federation.state.leases[&starting].state, LeaseState::Placed);

    federation.with_terms(
        "classes: [big, small]\n  clusters: [west]",
        "classes: [small]\n  clusters: [west]\n  onWithdrawal: stop",
    );
    for (donor, lease) in [("south", reclaimed), ("north", starting)] {
        let needed = federation.needs(donor);
        assert_eq!(needed, [ProposedReclaim { lease, reason: stop("class-not-allowed") }]);
        federation.reclaim(needed);
        assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending);
    }
}

#[test]
fn a_stop_leaves_the_request_of_a_revoked_user_cancelled() {
    let (mut federation, lease) = lent();
    revoke_alice(&mut federation, LeaseTreatment::Drain);
    federation.with_terms(LENDS, &withdrawn(LeaseTreatment::Stop));
    let needed = federation.needs("north");
    assert_eq!(federation.reclaim(needed), [lease]);
    let ended = &federation.state.leases[&lease];
    assert_eq!((ended.state, ended.end_reason), (LeaseState::Ending, Some(EndReason::Cancelled)));
    assert_eq!(federation.state.requests[&ended.request].state, RequestState::Cancelled);
}

#[test]
fn no_proposal_makes_a_drain_a_stop() {
    let (mut federation, lease) = lent();
    federation.with_terms(LENDS, &withdrawn(LeaseTreatment::Drain));
    let reclaims = vec![ProposedReclaim { lease, reason: stop("class-not-lent") }];
    federation.ok(Command::ReclaimLeases(ReclaimLeases { spare: Vec::new(), reclaims }));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
}

#[test]
fn a_lowered_limit_follows_the_terms() {
    for (treatment, expected) in [
        (LeaseTreatment::Finish, LeaseState::Active),
        (LeaseTreatment::Drain, LeaseState::Reclaiming),
        (LeaseTreatment::Stop, LeaseState::Ending),
    ] {
        let (mut federation, first) = lent();
        let (_, second) = federation.running(at("north", yielding(4, 0)));
        let lowered = format!("{LENDS}, maxLentGpus: 4, onWithdrawal: {}", treatment.as_str());
        federation.with_terms(LENDS, &lowered);
        let needed = federation.needs("north");
        federation.reclaim(needed);
        let states = [first, second].map(|lease| federation.state.leases[&lease].state);
        assert_eq!(states, [expected, LeaseState::Active], "no more than needed: {treatment:?}");
        // The tighter word ends what has its notice.
        if treatment == LeaseTreatment::Drain {
            let (state, now) = (federation.state.clone(), federation.now);
            let mut tightened = Federation { state, log: Vec::new(), now };
            tightened.with_terms(LENDS, &lowered.replace("drain", "stop"));
            let needed = tightened.needs("north");
            assert_eq!(tightened.reclaim(needed), [first]);
            assert_eq!(tightened.state.leases[&first].state, LeaseState::Ending);
            assert!(tightened.needs("north").is_empty());
        }
        // With room again, what still runs stays.
        federation.with_terms(LENDS, LENDS);
        assert_eq!(spared(&federation.state).len(), usize::from(treatment == LeaseTreatment::Drain));
    }
}

#[test]
fn a_plan_names_the_treatment_and_the_end() {
    for treatment in LeaseTreatment::ALL {
        let (mut federation, lease) = lent();
        let source = terms(LENDS, &withdrawn(treatment));
        let plan = plan_of(&federation.state, unforced(source.clone())).unwrap();
        let [effect] = &plan.leases.named[..] else { panic!("{:?}", plan.leases) };
        assert_eq!((effect.lease, effect.treatment, effect.code.as_str()), (lease, treatment, "class-not-lent"));
        assert_eq!(effect.reason, "`north` does not lend class `big`");
        // It happens as planned, but for the milliseconds between the commands.
        federation.ok(Command::ApplyPolicy(unforced(source)));
        let end = federation.runs_until(lease);
        assert!(end >= effect.until.0 && end - effect.until.0 < 10, "{treatment:?}: {end}, not {:?}", effect.until);
    }
}

#[test]
fn all_leases_stop_although_one_command_does_not_take_them() {
    let mut federation = Federation::ready();
    let big = device(81_559, Sharing::Exclusive);
    let names: Vec<String> = (0..10).map(|index| format!("n{index}")).collect();
    let nodes: Vec<_> = names.iter().map(|name| (name.as_str(), 8, big.clone())).collect();
    federation.offer("north", offer(5, &nodes));
    for _ in 0..70 {
        federation.submit(at("north", spec(1, Share::Whole, "big")));
    }
    let leases = federation.place();
    assert_eq!(leases.len(), 70);
    leases.iter().for_each(|lease| federation.run(*lease));
    federation.with_terms("lends: [{classes: [big, small]}]", &withdrawn(LeaseTreatment::Stop));
    let mut reclaimer = Reclaimer::default();
    for expected in [64, 6, 0] {
        let due = reclaimer.due_reclaims(&federation.state, federation.state.log_time);
        assert_eq!(due.len(), expected);
        federation.reclaim(due);
    }
}
