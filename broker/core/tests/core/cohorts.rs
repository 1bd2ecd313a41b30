//! Cohorts of quotas: borrowed quota goes back to whoever has it, with notice and no more than needed.

use comity_core::command::{CancelRequest, ReclaimLeases, ReleaseLease};
use comity_core::demand::{GpuDemand, Members, RequestSpec, Share};
use comity_core::explain;
use comity_core::inventory::{Offer, Sharing};
use comity_core::proposal::ProposedReclaim;
use comity_core::reclaim::ReclaimReason;
use comity_core::{Command, Millis, ReplyBody, scheduler};
use comity_types::{EndReason, LeaseId, LeaseState, PriorityName, RequestId, RequestState, TenantId};
use proptest::prelude::*;

use super::federation::{Federation, RIVALS, cluster, device, offer, spec};
use super::reclaim::{GRACE, at};

/// Quotas of two tenants in a cohort; the third has none.
fn quotas(team: &str, juniors: &str) -> String {
    let quota = |tenant: &str, spec: &str| {
        format!(
            "---\napiVersion: policy.comity.dev/v1\nkind: Quota\nmetadata: {{name: {tenant}}}\nspec: {{tenant: {tenant}, \
             cohort: lab, {spec}}}\n"
        )
    };
    format!("{RIVALS}{}{}", quota("team", team), quota("juniors", juniors))
}

fn of(tenant: &str, gpus: u32) -> RequestSpec {
    RequestSpec {
        tenant: TenantId::parse(tenant, "tenant").unwrap(),
        duration: Millis::from_hours(8),
        ..spec(gpus, Share::Whole, "big")
    }
}

impl Federation {
    fn sharing(team: &str, juniors: &str) -> Self {
        let mut federation = Self::with_rivals();
        federation.also(&quotas(team, juniors));
        federation
    }

    /// The leases that the next plan reclaims, with the reason's name.
    fn planned_reclaims(&self) -> Vec<ProposedReclaim> {
        scheduler::plan(&self.state, 100).reclaims
    }

    fn lease_state(&self, lease: LeaseId) -> LeaseState {
        self.state.leases[&lease].state
    }

    fn used_by(&self, tenant: &str) -> u64 {
        self.state.usage().in_use(tenant, "", "", "").tenant_milli()
    }
}

/// GPUs of leases that do not end, in thousandths. A lease and its replacement count once.
fn kept(federation: &Federation) -> u64 {
    let leases = federation.state.live_leases().map(|(_, lease)| lease);
    let kept = leases.filter(|lease| lease.state != LeaseState::Ending && lease.moved_to.is_none());
    kept.map(|lease| lease.placement.milli()).sum()
}

/// Proposes what is planned. Sparing a lease ends its replacement, which may be among the proposals: that one is refused.
/// Then both sides report that all ending leases are gone.
fn reclaim_and_clear(federation: &mut Federation) {
    let reclaims = federation.planned_reclaims();
    let spare = comity_core::feasibility::spared(&federation.state);
    federation.ok(Command::ReclaimLeases(ReclaimLeases { spare, reclaims }));
    let ending = federation.state.live_leases().filter(|(_, lease)| lease.state == LeaseState::Ending);
    let ending: Vec<LeaseId> = ending.map(|(id, _)| id).collect();
    ending.into_iter().for_each(|lease| federation.stop(lease));
}

fn end(federation: &mut Federation, lease: LeaseId) {
    federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
    federation.stop(lease);
}

/// Code, reason and remedy of what keeps a request from south.
fn obstacle(federation: &Federation, spec: &RequestSpec) -> (String, String, String) {
    let verdicts = explain::explain(&federation.state, spec).donors;
    let verdict = verdicts.into_iter().find(|verdict| verdict.donor == cluster("south")).unwrap();
    let obstacle = verdict.obstacle.unwrap();
    (obstacle.code, obstacle.reason, obstacle.unblock)
}

fn reclaimed(reclaims: &[ProposedReclaim]) -> Vec<LeaseId> {
    let mut leases: Vec<LeaseId> = reclaims.iter().map(|reclaim| reclaim.lease).collect();
    leases.sort_unstable();
    leases
}

#[test]
fn borrowed_quota_is_returned_with_notice_and_no_more_than_needed() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 4", "maxConcurrentGpus: 4");
    let (_, own) = federation.running(at("north", of("team", 3)));
    let (borrower, borrowed) = federation.running(at("north", of("team", 3)));
    let (_, more) = federation.running(at("north", of("team", 1)));
    assert_eq!(federation.used_by("team"), 7_000, "three of the juniors' four");
    // There are free GPUs at south, and not enough quota.
    let wanted = at("south", of("juniors", 2));
    let (code, reason, unblock) = obstacle(&federation, &wanted);
    assert_eq!(code, "quota-lent", "{reason}");
    assert!(reason.contains("0 are in use, others of cohort `lab` borrow 3, and the request needs 2 more"), "{reason}");
    assert!(unblock.contains("are reclaimed for it"), "{unblock}");
    let quote = explain::quote(&federation.state, &wanted);
    let told = quote.reclaims.clone().unwrap();
    assert!(told.return_quota && !told.move_aside && !told.given);
    assert_eq!((&told.donor, told.leases.len(), told.gpus_milli()), (&cluster("south"), 1, 1_000), "{told:?}");
    assert_eq!(told.leases[0].lease, more, "the least that is enough");
    let starts = quote.earliest.clone().unwrap();
    assert_eq!(starts.0.0, federation.state.log_time.0 + GRACE, "{starts:?}");
    assert!(quote.explanation.summary.contains("would be reclaimed to return quota that it needs"), "{quote:?}");

    let request = federation.submit(wanted);
    assert_eq!(federation.place(), []);
    let reclaims = federation.planned_reclaims();
    assert_eq!(reclaimed(&reclaims), [more]);
    assert_eq!(reclaims[0].reason, ReclaimReason::BorrowedQuota { by: request, at: cluster("south") });
    federation.reclaim(reclaims);
    assert_eq!(
        [own, borrowed, more].map(|lease| federation.lease_state(lease)),
        [LeaseState::Active, LeaseState::Active, LeaseState::Reclaiming]
    );
    let message = &federation.state.requests[&request].message;
    assert!(
        message.ends_with("quota that others borrow; it is being reclaimed, and the request starts at south"),
        "{message}"
    );
    let waiting = explain::explain_waiting(&federation.state, request).unwrap();
    assert!(waiting.reclaims.unwrap().given);
    assert_eq!(federation.planned_reclaims(), [], "once is enough");
    assert_eq!(federation.place(), [], "and the quota is nobody else's meanwhile");

    federation.expire_at(federation.state.leases[&more].reclaim.clone().unwrap().deadline.0);
    assert_eq!(federation.state.leases[&more].end_reason, Some(EndReason::Reclaimed));
    federation.stop(more);
    let leases = federation.place();
    let placed: Vec<RequestId> = leases.iter().map(|lease| federation.state.leases[lease].request).collect();
    assert_eq!(placed, [request], "not the request of the lease that was reclaimed");
    assert_eq!((federation.used_by("team"), federation.used_by("juniors")), (6_000, 2_000));
    assert_eq!(federation.state.requests[&borrower].state, RequestState::Placed);
    // What waits now borrows, and takes nothing back.
    assert_eq!(federation.planned_reclaims(), []);
}

#[test]
fn who_asks_above_its_quota_takes_nothing_back() {
    let mut federation = Federation::with_rivals();
    let third = "---\napiVersion: policy.comity.dev/v1\nkind: Quota\nmetadata: {name: rivals}\n\
                 spec: {tenant: rivals, cohort: lab, maxConcurrentGpus: 4}\n";
    federation.also(&format!("{}{third}", quotas("maxConcurrentGpus: 4", "maxConcurrentGpus: 4")));
    for gpus in [4, 3, 3] {
        federation.running(at("north", of("team", gpus)));
    }
    // The borrower owes six, and two of the third member's are idle: together they are enough for five.
    let request = federation.submit(at("north", of("juniors", 5)));
    assert_eq!(federation.planned_reclaims(), [], "its quota is four");
    federation.ok(Command::CancelRequest(CancelRequest { request }));
    federation.submit(at("north", of("juniors", 4)));
    assert_ne!(federation.planned_reclaims(), []);
}

#[test]
fn nobody_takes_back_more_than_its_quota_or_without_a_place() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 4", "maxConcurrentGpus: 4, lendingLimit: 3");
    let (_, lease) = federation.running(at("north", of("team", 7)));
    // Of its four GPUs one is never lent.
    let (code, ..) = obstacle(&federation, &at("south", of("juniors", 2)));
    assert_eq!(code, "quota-lent");
    federation.running(at("south", of("juniors", 1)));
    federation.submit(at("south", of("juniors", 4)));
    assert_eq!(federation.planned_reclaims(), [], "above its quota");
    let elsewhere = federation.submit(RequestSpec { allow_donors: vec![cluster("east")], ..of("juniors", 2) });
    assert_eq!(federation.planned_reclaims(), [], "no donor has room for it");
    let request = federation.submit(at("south", of("juniors", 2)));
    let reclaims = federation.planned_reclaims();
    assert_eq!(reclaimed(&reclaims), [lease]);
    // Nobody else can have it reclaimed.
    for by in [elsewhere, RequestId(99)] {
        let reason = ReclaimReason::BorrowedQuota { by, at: cluster("south") };
        let command = ReclaimLeases { spare: Vec::new(), reclaims: vec![ProposedReclaim { lease, reason }] };
        match federation.ok(Command::ReclaimLeases(command)).reply.unwrap() {
            ReplyBody::Reclaimed { leases, refused, .. } => assert!(leases.is_empty() && refused.len() == 1),
            other => panic!("{other:?}"),
        }
    }
    federation.reclaim(reclaims);
    federation.ok(Command::CancelRequest(CancelRequest { request }));
    federation.reclaim(Vec::new());
    assert_eq!(federation.lease_state(lease), LeaseState::Active, "the reason has gone away");
}

#[test]
fn a_lease_that_has_both_the_quota_and_the_room_is_taken() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 12", "maxConcurrentGpus: 8");
    let (_, elsewhere) = federation.running(at("north", of("team", 8)));
    let (_, there) = federation.running(at("south", of("team", 4)));
    let (_, more) = federation.running(at("north", of("team", 4)));
    assert_eq!(federation.used_by("team"), 16_000, "four borrowed");
    let fits = federation.submit(at("north", of("juniors", 4)));
    assert_eq!(federation.place().len(), 1, "within its quota, and there is room");
    let lease = federation.state.requests[&fits].lease.unwrap();
    federation.run(lease);
    federation.submit(at("south", of("juniors", 4)));
    let reclaims = federation.planned_reclaims();
    assert_eq!(reclaimed(&reclaims), [there], "not {elsewhere} or {more}: its place is needed, too");
}

#[test]
fn two_claims_do_not_count_on_the_same_lease() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 0", "maxConcurrentGpus: 4");
    let leases: Vec<LeaseId> = (0..4).map(|_| federation.running(at("north", of("team", 1))).1).collect();
    let requests = [("north", 1), ("south", 1)].map(|(donor, gpus)| federation.submit(at(donor, of("juniors", gpus))));
    let mut taken = Vec::new();
    for _ in 0..3 {
        let reclaims = federation.planned_reclaims();
        taken.extend(federation.reclaim(reclaims));
    }
    taken.sort_unstable();
    taken.dedup();
    assert_eq!(taken.len(), 2, "one for each request: {taken:?} of {leases:?}");
    for lease in taken {
        federation.expire_at(federation.state.leases[&lease].reclaim.clone().unwrap().deadline.0);
        federation.stop(lease);
        federation.place();
    }
    assert!(requests.iter().all(|request| federation.state.requests[request].state == RequestState::Placed));
    assert_eq!((federation.used_by("team"), federation.used_by("juniors")), (2_000, 2_000));
}

#[test]
fn who_borrows_stands_back_for_who_is_within_its_quota() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 4", "maxConcurrentGpus: 4");
    federation.running(of("team", 4));
    let (first, _) = federation.running(of("juniors", 3));
    let borrows = federation.submit(of("team", 1));
    let within = federation.submit(of("juniors", 1));
    let placed: Vec<RequestId> =
        federation.place().iter().map(|lease| federation.state.leases[lease].request).collect();
    assert_eq!(placed, [within], "although {borrows} is older");
    // If nobody else needs it, the older request borrows.
    let lease = federation.state.requests[&first].lease.unwrap();
    end(&mut federation, lease);
    assert_eq!(federation.place().len(), 1);
    assert_eq!(federation.state.requests[&borrows].state, RequestState::Placed);
}

#[test]
fn a_policy_that_takes_quota_away_ends_nothing_until_it_is_needed() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 4", "maxConcurrentGpus: 8");
    let (_, lease) = federation.running(at("north", of("team", 8)));
    federation.also(&quotas("maxConcurrentGpus: 4", "maxConcurrentGpus: 2"));
    assert_eq!(federation.lease_state(lease), LeaseState::Active);
    assert_eq!(federation.planned_reclaims(), []);
    let (code, ..) = obstacle(&federation, &at("south", of("team", 1)));
    assert_eq!(code, "quota-exhausted", "more than both have");
    federation.submit(at("south", of("juniors", 2)));
    assert_eq!(reclaimed(&federation.planned_reclaims()), [lease]);
}

#[test]
fn quota_within_a_members_own_is_not_taken_to_make_room() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 12", "maxConcurrentGpus: 8");
    let leases: Vec<LeaseId> = (0..13).map(|_| federation.running(at("north", of("team", 1))).1).collect();
    // It lacks one GPU of quota, and five of room at its only donor.
    let request = federation.submit(at("north", of("juniors", 8)));
    assert_eq!(federation.planned_reclaims(), [], "twelve GPUs are the other's own");
    for taken in [5, 8] {
        let reason = ReclaimReason::BorrowedQuota { by: request, at: cluster("north") };
        let reclaims = leases[..taken].iter().map(|lease| ProposedReclaim { lease: *lease, reason: reason.clone() });
        let command = ReclaimLeases { spare: Vec::new(), reclaims: reclaims.collect() };
        match federation.ok(Command::ReclaimLeases(command)).reply.unwrap() {
            ReplyBody::Reclaimed { leases, refused, .. } => assert!(leases.is_empty() && refused.len() == taken),
            other => panic!("{other:?}"),
        }
    }
    // With room, one lease is enough.
    federation.nodes(2, &[("north", 8)]);
    assert_eq!(federation.planned_reclaims().len(), 1);
}

#[test]
fn claims_at_one_donor_share_one_notice() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 0", "maxConcurrentGpus: 4");
    for _ in 0..4 {
        federation.running(at("south", of("team", 1)));
    }
    let requests = [2, 2].map(|gpus| federation.submit(at("south", of("juniors", gpus))));
    let mut deadlines = Vec::new();
    for request in requests {
        let reclaims = federation.planned_reclaims();
        assert!(reclaims.iter().all(|reclaim| reclaim.reason.for_request() == Some(request)), "{reclaims:?}");
        let taken = federation.reclaim(reclaims);
        assert_eq!(taken.len(), 2, "{request}");
        deadlines.push(federation.state.leases[&taken[1]].reclaim.clone().unwrap().deadline.0);
    }
    assert_eq!(comity_core::feasibility::spared(&federation.state), []);
    assert_eq!(federation.planned_reclaims(), []);
    assert!(deadlines[1] < deadlines[0] + 1_000, "the second notice does not wait for the first: {deadlines:?}");
    federation.expire_at(deadlines[1]);
    let ending: Vec<LeaseId> = federation.state.live_leases().map(|(id, _)| id).collect();
    ending.into_iter().for_each(|lease| federation.stop(lease));
    assert_eq!(federation.place().len(), 2);
    assert!(requests.iter().all(|request| federation.state.requests[request].state == RequestState::Placed));
}

/// A donor whose GPUs are shared by twenty.
fn shared(nodes: &[&str]) -> Offer {
    let big = device(81_559, Sharing::Mps { shares: 20 });
    offer(2, &nodes.iter().map(|name| (*name, 8, big.clone())).collect::<Vec<_>>())
}

fn part_of(tenant: &str, milli: u32) -> RequestSpec {
    let whole = of(tenant, 1);
    RequestSpec { gpus: GpuDemand { share: Share::Milli(milli), ..whole.gpus }, ..whole }
}

#[test]
fn no_more_claims_wait_for_quota_than_a_plan_reserves_room_for() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 0", "maxConcurrentGpus: 2");
    federation.offer("north", shared(&["n1"]));
    for _ in 0..20 {
        federation.submit(at("north", part_of("team", 100)));
    }
    federation.place().into_iter().for_each(|lease| federation.run(lease));
    for _ in 0..20 {
        federation.submit(at("north", part_of("juniors", 100)));
    }
    let mut waiting = 0;
    loop {
        let reclaims = federation.planned_reclaims();
        if reclaims.is_empty() {
            break;
        }
        federation.reclaim(reclaims);
        waiting += 1;
    }
    assert_eq!(waiting, 16);
}

#[test]
fn a_claim_takes_large_leases_if_the_cheapest_are_too_many() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 0", "maxConcurrentGpus: 11");
    federation.offer("north", shared(&["n1", "n2", "n3"]));
    let whole = device(81_559, Sharing::Exclusive);
    federation.offer("south", offer(2, &["s1", "s2", "s3"].map(|name| (name, 4, whole.clone()))));
    // They have run longest, so they are the last to be chosen.
    let large: Vec<LeaseId> = (0..4).map(|_| federation.running(at("south", of("team", 1))).1).collect();
    for _ in 0..70 {
        federation.submit(at("north", part_of("team", 100)));
    }
    // Two plans: a command places at most 64.
    for _ in 0..2 {
        federation.place().into_iter().for_each(|lease| federation.run(lease));
    }
    assert_eq!(federation.used_by("team"), 11_000);
    let all = federation.submit(at("south", of("juniors", 11)));
    assert_eq!(federation.planned_reclaims(), [], "74 leases are more than one command may reclaim");
    federation.ok(Command::CancelRequest(CancelRequest { request: all }));
    federation.submit(at("south", of("juniors", 7)));
    let taken = reclaimed(&federation.planned_reclaims());
    let gpus = taken.iter().map(|lease| federation.state.leases[lease].placement.milli());
    assert_eq!(gpus.sum::<u64>(), 7_000, "no more than is needed");
    assert!(taken.len() <= 64 && large.iter().any(|lease| taken.contains(lease)), "{taken:?}");
    let reclaims = federation.planned_reclaims();
    federation.reclaim(reclaims);
}

#[test]
fn a_gang_on_several_donors_stands_back_for_what_it_borrows_in_all() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 4", "maxConcurrentGpus: 2");
    federation.nodes(2, &[("north", 1), ("south", 1)]);
    let spread = RequestSpec { members: Some(Members { min: 3, desired: 3 }), spread_donors: true, ..of("team", 2) };
    let borrows = federation.submit(spread);
    let within = federation.submit(at("south", of("juniors", 2)));
    let placed: Vec<RequestId> =
        federation.place().iter().map(|lease| federation.state.leases[lease].request).collect();
    assert_eq!(placed, [within], "no part of {borrows} is larger than its quota");
}

#[test]
fn a_long_queue_has_borrowers_stand_back_too() {
    let mut federation = Federation::sharing("maxConcurrentGpus: 1", "maxConcurrentGpus: 1");
    federation.offer("north", shared(&["n1", "n2"]));
    for _ in 0..70 {
        federation.submit(at("north", part_of("team", 50)));
    }
    let low = Some(PriorityName::parse("low", "priority").unwrap());
    let within = federation.submit(RequestSpec { priority: low, ..at("south", of("juniors", 1)) });
    // The first 30 need half of what the other has.
    let placements = scheduler::plan(&federation.state, 30).placements;
    assert!(placements.iter().any(|placed| placed.request == within), "{}", placements.len());
    assert_eq!(placements.len(), 21, "twenty are within the quota");
}

/// What happens in a property: a tenant asks, or the oldest lease of one ends.
#[derive(Clone, Copy, Debug)]
enum Event {
    Ask(bool, u32),
    End(bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (any::<bool>(), 1_u32..=4).prop_map(|(team, gpus)| Event::Ask(team, gpus)),
        1 => any::<bool>().prop_map(Event::End),
    ];
    prop::collection::vec(event, 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// With room everywhere, all requests within nominal quotas run once notices are over, and no more is used than both
    /// quotas have.
    #[test]
    fn every_member_gets_its_quota_back(team in 0_u32..=5, juniors in 0_u32..=5, events in events()) {
        let gpus = |gpus: u32| format!("maxConcurrentGpus: {gpus}");
        let mut federation = Federation::sharing(&gpus(team), &gpus(juniors));
        let name = |is_team: bool| if is_team { "team" } else { "juniors" };
        let nominal = |is_team: bool| u64::from(if is_team { team } else { juniors }) * 1_000;
        for event in events {
            match event {
                Event::Ask(is_team, gpus) => {
                    federation.submit(of(name(is_team), gpus));
                }
                Event::End(is_team) => {
                    let held = federation.state.live_leases().find(|(_, lease)| {
                        lease.tenant.as_str() == name(is_team) && lease.state == LeaseState::Active
                    });
                    if let Some(id) = held.map(|(id, _)| id) {
                        end(&mut federation, id);
                    }
                }
            }
            let leases = federation.place();
            leases.iter().for_each(|lease| federation.run(*lease));
            reclaim_and_clear(&mut federation);
            prop_assert!(kept(&federation) <= nominal(true) + nominal(false));
        }
        for _ in 0..24 {
            let due: Vec<LeaseId> = federation.state.reclaiming().map(|(id, _)| id).collect();
            if let Some(last) = due.iter().filter_map(|id| Some(federation.state.leases[id].reclaim.as_ref()?.deadline.0)).max() {
                federation.expire_at(last);
                due.iter().for_each(|lease| federation.stop(*lease));
            }
            let leases = federation.place();
            leases.iter().for_each(|lease| federation.run(*lease));
            let done = leases.is_empty() && federation.planned_reclaims().is_empty() && due.is_empty();
            reclaim_and_clear(&mut federation);
            prop_assert!(kept(&federation) <= nominal(true) + nominal(false));
            if done {
                break;
            }
        }
        prop_assert!(federation.state.reclaiming().next().is_none(), "it comes to rest");
        for is_team in [true, false] {
            let used = federation.used_by(name(is_team));
            let waits = federation.state.queued().filter(|(_, request)| request.spec.tenant.as_str() == name(is_team));
            for (id, request) in waits {
                prop_assert!(used + request.spec.least_milli() > nominal(is_team), "{} waits beside {}", id, used);
            }
        }
    }
}
