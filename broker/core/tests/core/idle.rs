//! Leases that nobody uses are released.

use comity_audit::NonceKey;
use comity_core::command::{BeginTerm, Expire, LeaseOutcome, MarkClusters, RenewLease, ReportLease};
use comity_core::demand::{Members, RequestSpec, Share};
use comity_core::inventory::Sharing;
use comity_core::refusal::Code;
use comity_core::{Command, Millis};
use comity_types::{EndReason, LeaseId, LeaseState, RequestState};

use super::federation::{Federation, cluster, device, offer, spec};
use super::reclaim::{MINUTE, at, used, yielding};

/// Idle time after which the leases of most tests are released.
const LIMIT: u64 = 30 * MINUTE;

/// A request of eight hours that only `north` may serve.
fn released_idle(limit: u64) -> RequestSpec {
    let wanted = RequestSpec { duration: Millis::from_hours(8), ..spec(2, Share::Whole, "big") };
    RequestSpec { release_idle: Some(Millis(limit)), ..at("north", wanted) }
}

impl Federation {
    fn idle_for(&mut self, lease: LeaseId, ms: u64) {
        let donor = self.state.leases[&lease].placement.donor.to_string();
        self.report_lease(&donor, lease, LeaseOutcome::Idle { idle_for: Millis(ms) });
    }

    fn in_use(&mut self, lease: LeaseId) {
        let donor = self.state.leases[&lease].placement.donor.to_string();
        self.report_lease(&donor, lease, LeaseOutcome::InUse);
    }

    fn mark(&mut self, heard: &[&str], silent: &[&str]) {
        let named = |names: &[&str]| names.iter().map(|name| cluster(name)).collect();
        self.ok(Command::MarkClusters(MarkClusters { heard: named(heard), silent: named(silent) }));
    }

    fn end_of(&self, lease: LeaseId) -> Option<EndReason> {
        self.state.leases[&lease].end_reason
    }

    /// Lets this much time pass, and expires what is due.
    fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.ok(Command::Expire(Expire {}));
    }
}

#[test]
fn a_lease_that_stays_idle_is_released_and_one_in_use_is_not() {
    let mut federation = Federation::ready();
    let (request, lease) = federation.running(released_idle(LIMIT));
    federation.now += 10 * MINUTE;
    federation.idle_for(lease, 5 * MINUTE);
    let since = federation.state.leases[&lease].idle_since.unwrap();
    assert_eq!(since.0, federation.now - 5 * MINUTE, "by the donor's clock, in log time");
    federation.pass(20 * MINUTE);
    federation.in_use(lease);
    federation.pass(60 * MINUTE);
    assert_eq!(federation.end_of(lease), None);

    federation.idle_for(lease, 0);
    federation.pass(LIMIT - 2);
    assert_eq!(federation.end_of(lease), None, "not before its time");
    federation.pass(1);
    let ended = &federation.state.leases[&lease];
    assert_eq!((ended.state, ended.end_reason), (LeaseState::Ending, Some(EndReason::Idle)));
    assert_eq!(ended.message, "no work used it for 30m");
    assert_eq!(federation.state.requests[&request].state, RequestState::Completed, "it does not wait again");
}

#[test]
fn without_a_limit_a_lease_may_stay_idle() {
    let mut federation = Federation::ready();
    let (_, lease) = federation.running(RequestSpec { release_idle: None, ..released_idle(LIMIT) });
    federation.idle_for(lease, 0);
    federation.pass(7 * 60 * MINUTE);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
}

#[test]
fn the_shorter_limit_of_request_and_policy_applies_and_a_quota_may_set_one() {
    let federation = "heartbeatTimeout: 30s}\n  limits: {idleRelease: 20m}";
    let quota = "\n---\napiVersion: policy.comity.dev/v1\nkind: Quota\nmetadata: {name: idle}\n\
        spec: {tenant: team, classes: [CLASS], idleRelease: 5m}\n---\n";
    for (asked, class, wanted) in
        [(None, "small", 20), (Some(30), "small", 20), (Some(10), "small", 10), (Some(30), "big", 5), (None, "big", 5)]
    {
        let mut state = Federation::ready();
        state.with_terms("heartbeatTimeout: 30s}\n---\n", &format!("{federation}{}", quota.replace("CLASS", class)));
        let release_idle = asked.map(|minutes| Millis(minutes * MINUTE));
        let (_, lease) = state.running(RequestSpec { release_idle, ..released_idle(LIMIT) });
        let limit = state.state.leases[&lease].release_idle;
        assert_eq!(limit, Some(Millis(wanted * MINUTE)), "{asked:?} and a quota on {class}");
    }
}

#[test]
fn only_the_donor_counts_use_and_late_reports_are_harmless() {
    let mut federation = Federation::ready();
    let (_, lease) = federation.running(released_idle(LIMIT));
    let fencing_token = federation.state.leases[&lease].fencing_token;
    let report = |name: &str, outcome| {
        Command::ReportLease(ReportLease { cluster: cluster(name), lease, fencing_token, outcome })
    };
    for outcome in [LeaseOutcome::Idle { idle_for: Millis(0) }, LeaseOutcome::InUse] {
        assert_eq!(federation.refused(report("west", outcome)).code, Code::PermissionDenied);
    }
    federation.in_use(lease);
    let before = federation.state.revision;
    federation.in_use(lease);
    assert_eq!(federation.state.revision, before, "the same report again changes nothing");
    federation.idle_for(lease, 0);
    federation.pass(LIMIT);
    federation.idle_for(lease, LIMIT);
    assert_eq!(federation.end_of(lease), Some(EndReason::Idle));
}

#[test]
fn idle_time_from_before_the_lease_was_active_does_not_count() {
    let mut federation = Federation::ready();
    let (_, lease) = federation.running(released_idle(LIMIT));
    let active_at = federation.state.leases[&lease].active_at;
    federation.now += MINUTE;
    for claimed in [600 * MINUTE, u64::MAX] {
        federation.idle_for(lease, claimed);
        assert_eq!(federation.state.leases[&lease].idle_since, active_at);
    }
    assert_eq!(federation.end_of(lease), None);
}

#[test]
fn silence_of_either_side_is_no_idleness() {
    for silent in ["north", "west"] {
        let mut federation = Federation::ready();
        let (_, lease) = federation.running(released_idle(LIMIT));
        federation.idle_for(lease, 0);
        federation.pass(20 * MINUTE);
        federation.mark(&[], &[silent]);
        federation.pass(2 * LIMIT);
        assert_eq!(federation.state.leases[&lease].state, LeaseState::Suspect, "{silent}");
        federation.mark(&[silent], &[]);
        federation.pass(LIMIT - MINUTE);
        assert_eq!(federation.end_of(lease), None, "{silent}: the count starts again");
        // A donor that counted on through the silence cannot shorten that.
        federation.idle_for(lease, 600 * MINUTE);
        assert_eq!(federation.end_of(lease), None, "{silent}");
        federation.pass(MINUTE);
        assert_eq!(federation.end_of(lease), Some(EndReason::Idle), "{silent}");
    }
}

#[test]
fn an_outage_of_the_brokers_is_not_counted_and_a_renewal_changes_nothing() {
    let mut federation = Federation::ready();
    let (_, lease) = federation.running(released_idle(LIMIT));
    federation.now += MINUTE;
    federation.idle_for(lease, 0);
    federation.now += 40 * MINUTE;
    federation.ok(Command::BeginTerm(BeginTerm {
        broker: 2,
        outage: Millis(30 * MINUTE),
        nonce_key: NonceKey::default(),
    }));
    federation.ok(Command::RenewLease(RenewLease { lease, duration: Millis(0), may_shorten: false }));
    federation.pass(19 * MINUTE);
    assert_eq!(federation.end_of(lease), None);
    // Nor can a donor that counted through it report more.
    federation.idle_for(lease, 600 * MINUTE);
    assert_eq!(federation.state.leases[&lease].idle_since, Some(federation.state.term_began));
    federation.pass(LIMIT - 19 * MINUTE);
    assert_eq!(federation.end_of(lease), Some(EndReason::Idle));
}

#[test]
fn a_lease_under_reclaim_and_its_replacement_are_not_released_as_idle() {
    let mut federation = Federation::ready();
    federation.offer("north", offer(2, &[]));
    let wanted = RequestSpec { release_idle: Some(Millis(2 * MINUTE)), ..yielding(4, 0) };
    let (request, lease) = federation.running(wanted);
    federation.offer("north", comity_core::inventory::Offer { generation: 3, ..used(3, &[("n1", 8, 0)]) });
    federation.offer("south", used(2, &[("s1", 4, 1)]));
    let proposed = federation.needs("south");
    federation.reclaim(proposed);
    let next = federation.place()[0];
    federation.run(next);
    // The work still runs on the old lease, and nothing on the new one.
    for lease in [lease, next] {
        federation.idle_for(lease, 0);
    }
    federation.pass(3 * MINUTE);
    assert_eq!((federation.end_of(lease), federation.end_of(next)), (None, None));
    federation.report_lease("west", lease, LeaseOutcome::Checkpointed);
    assert_eq!(federation.state.requests[&request].lease, Some(next));
    federation.pass(MINUTE);
    assert_eq!(federation.end_of(next), None, "its idle time begins when it takes over");
    federation.pass(MINUTE);
    assert_eq!(federation.end_of(next), Some(EndReason::Idle));
}

#[test]
fn a_gang_is_released_once_all_its_leases_are_idle() {
    let mut federation = Federation::ready();
    let big = || device(81_559, Sharing::Exclusive);
    federation.offer("north", offer(2, &[("n1", 4, big()), ("n2", 4, big())]));
    let gang = RequestSpec {
        members: Some(Members { min: 3, desired: 3 }),
        spread_donors: true,
        allow_donors: Vec::new(),
        ..released_idle(LIMIT)
    };
    let gang = RequestSpec { gpus: spec(4, Share::Whole, "big").gpus, ..gang };
    let (request, _) = federation.running(gang);
    let parts: Vec<LeaseId> = federation.state.requests[&request].leases().collect();
    assert_eq!(parts.len(), 2);
    federation.idle_for(parts[0], 0);
    federation.pass(2 * LIMIT);
    assert_eq!(federation.end_of(parts[0]), None, "the other part is in use");
    federation.idle_for(parts[1], 0);
    federation.pass(LIMIT - MINUTE);
    assert_eq!(federation.end_of(parts[1]), None);
    federation.pass(MINUTE);
    assert_eq!(parts.iter().map(|part| federation.end_of(*part)).collect::<Vec<_>>(), [Some(EndReason::Idle); 2]);
    assert_eq!(federation.state.requests[&request].state, RequestState::Completed);
}
