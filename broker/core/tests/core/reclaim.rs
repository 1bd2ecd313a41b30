//! Reclaims: with notice, no more than needed, and with a move if there is another place.

use comity_audit::NonceKey;
use comity_core::command::{
    CancelRequest, CheckpointLease, Expire, LeaseOutcome, MarkClusters, PlaceRequests, ReclaimLeases,
};
use comity_core::demand::Preemptible;
use comity_core::demand::{RequestSpec, Share};
use comity_core::explain;
use comity_core::feasibility::spared;
use comity_core::inventory::{Offer, Sharing};
use comity_core::proposal::ProposedReclaim;
use comity_core::reclaim::ReclaimReason;
use comity_core::refusal::Code;
use comity_core::scheduler::{self, Planner, reclaims_at};
use comity_core::{Command, Millis, ReplyBody};
use comity_types::{
    EndReason, LeaseId, LeaseState, LeaseTreatment, PriorityName, RequestId, RequestState, TenantId, namespace_name,
};

use super::boxes::obstacle;
use super::federation::{Federation, RIVALS, cluster, device, node, offer, spec};

/// Default of `reclaimGrace`.
pub(crate) const GRACE: u64 = 5 * 60_000;
pub(crate) const MINUTE: u64 = 60_000;

pub(crate) fn rivals() -> String {
    RIVALS.replace("{value: 1000, usedBy", "{value: 1000, mayPreempt: true, usedBy")
}

/// A request that may preempt others.
pub(crate) fn urgent(count: u32) -> RequestSpec {
    RequestSpec {
        tenant: TenantId::parse("rivals", "tenant").unwrap(),
        origin: cluster("east"),
        priority: Some(PriorityName::parse("urgent", "priority").unwrap()),
        ..spec(count, Share::Whole, "big")
    }
}

/// A request that others may preempt.
pub(crate) fn yielding(count: u32, grace: u64) -> RequestSpec {
    let preemptible = Some(Preemptible { grace: Millis(grace), checkpoint: true, same_gpu_type: false });
    RequestSpec { preemptible, duration: Millis::from_hours(8), ..spec(count, Share::Whole, "big") }
}

/// A request that only this donor may serve.
pub(crate) fn at(donor: &str, spec: RequestSpec) -> RequestSpec {
    RequestSpec { allow_donors: vec![cluster(donor)], ..spec }
}

/// The offers of [`Federation::ready`], with some devices of each node in local use.
pub(crate) fn used(generation: u64, nodes: &[(&str, usize, usize)]) -> Offer {
    let big = device(81_559, Sharing::Exclusive);
    let like: Vec<_> = nodes.iter().map(|(name, gpus, _)| (*name, *gpus, big.clone())).collect();
    let mut offer = offer(generation, &like);
    for (name, _, local) in nodes {
        let devices = &mut offer.nodes.get_mut(&node(name)).unwrap().devices;
        devices.iter_mut().rev().take(*local).for_each(|device| device.local_use_milli = 1_000);
    }
    offer
}

impl Federation {
    pub(crate) fn with_preemption() -> Self {
        let mut federation = Self::with_rivals();
        federation.also(&rivals());
        federation
    }

    /// A preemptible lease of four GPUs runs at `south`; after that `north` offers room.
    fn with_work_at_south(&mut self) -> (RequestId, LeaseId) {
        self.offer("north", offer(2, &[]));
        let running = self.running(yielding(4, 0));
        self.offer("north", Offer { generation: 3, ..used(3, &[("n1", 8, 0), ("n2", 8, 0)]) });
        running
    }

    pub(crate) fn run(&mut self, lease: LeaseId) {
        self.both(lease, &LeaseOutcome::Ready { namespace: namespace_name(lease), secret_name: "s".into() });
    }

    pub(crate) fn stop(&mut self, lease: LeaseId) {
        self.both(lease, &LeaseOutcome::Clean);
    }

    pub(crate) fn both(&mut self, lease: LeaseId, outcome: &LeaseOutcome) {
        let held = &self.state.leases[&lease];
        for name in [held.placement.donor.to_string(), held.origin.to_string()] {
            self.report_lease(&name, lease, outcome.clone());
        }
    }

    /// Submits a request, places it and makes its lease active.
    pub(crate) fn running(&mut self, spec: RequestSpec) -> (RequestId, LeaseId) {
        let request = self.submit(spec);
        let leases = self.place();
        leases.iter().for_each(|lease| self.run(*lease));
        (request, self.state.requests[&request].lease.unwrap())
    }

    fn state_of(&self, lease: LeaseId) -> LeaseState {
        self.state.leases[&lease].state
    }

    pub(crate) fn needs(&self, donor: &str) -> Vec<ProposedReclaim> {
        reclaims_at(&self.state, &cluster(donor), self.state.log_time)
    }

    pub(crate) fn reclaim(&mut self, reclaims: Vec<ProposedReclaim>) -> Vec<LeaseId> {
        let spare = spared(&self.state);
        match self.ok(Command::ReclaimLeases(ReclaimLeases { spare: spare.clone(), reclaims })).reply {
            Ok(ReplyBody::Reclaimed { leases, refused, .. }) => {
                // Sparing one lease may renew the need for another.
                let is_proposed = |(lease, _): &(LeaseId, _)| !spare.contains(lease);
                assert!(!refused.iter().any(is_proposed), "apply refused proposals of the same state: {refused:?}");
                leases
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn expire_at(&mut self, now: u64) {
        self.now = now;
        self.ok(Command::Expire(Expire {}));
    }
}

fn lost(request: RequestId, lease: LeaseId) -> Vec<ProposedReclaim> {
    vec![ProposedReclaim { lease, reason: ReclaimReason::Preempted { by: request } }]
}

#[test]
fn local_need_gives_notice_and_a_lease_without_another_place_ends_at_its_deadline() {
    let mut federation = Federation::ready();
    let (request, lease) = federation.running(at("south", yielding(3, 0)));
    federation.offer("south", used(2, &[("s1", 4, 1)]));
    assert!(federation.needs("south").is_empty(), "the fourth was free");
    federation.offer("south", used(3, &[("s1", 4, 2)]));
    let proposed = federation.needs("south");
    assert_eq!(proposed, [ProposedReclaim { lease, reason: ReclaimReason::LocalNeed }]);
    federation.reclaim(proposed);
    let reclaimed = federation.state.leases[&lease].reclaim.clone().unwrap();
    assert_eq!(reclaimed.deadline.0, federation.now + GRACE);
    assert!(federation.state.leases[&lease].state.is_in_force());
    assert!(federation.needs("south").is_empty(), "once is enough");
    assert!(scheduler::plan(&federation.state, 10).placements.is_empty(), "it is allowed nowhere else");
    let twice = ReclaimLeases {
        spare: vec![lease],
        reclaims: vec![ProposedReclaim { lease, reason: ReclaimReason::LocalNeed }],
    };
    match federation.ok(Command::ReclaimLeases(twice)).reply.unwrap() {
        ReplyBody::Reclaimed { leases, spared, refused } => {
            assert!(leases.is_empty() && spared.is_empty());
            assert!(refused.iter().all(|(_, refusal)| refusal.code == Code::WrongState), "{refused:?}");
            assert_eq!(refused.len(), 2);
        }
        other => panic!("{other:?}"),
    }

    federation.expire_at(reclaimed.deadline.0 - 2);
    assert_eq!(federation.state_of(lease), LeaseState::Reclaiming, "not before its grace");
    let submitted = federation.state.requests[&request].submitted_at;
    federation.expire_at(reclaimed.deadline.0);
    let ended = &federation.state.leases[&lease];
    assert_eq!((ended.state, ended.end_reason), (LeaseState::Ending, Some(EndReason::Reclaimed)));
    let waiting = &federation.state.requests[&request];
    assert_eq!((waiting.state, waiting.submitted_at, waiting.attempts), (RequestState::Queued, submitted, 0));
    federation.stop(lease);
    assert_eq!(federation.state_of(lease), LeaseState::Ended);
}

#[test]
fn a_lease_that_is_reclaimed_moves_and_its_request_keeps_its_id() {
    let mut federation = Federation::ready();
    let (request, lease) = federation.with_work_at_south();
    federation.offer("south", used(2, &[("s1", 4, 1)]));
    let proposed = federation.needs("south");
    federation.reclaim(proposed);
    let next = federation.place()[0];
    let (old, new) = (&federation.state.leases[&lease], &federation.state.leases[&next]);
    assert_eq!((old.moved_to, new.moved_from, new.request), (Some(next), Some(lease), request));
    assert_eq!((&new.placement.donor, old.state), (&cluster("north"), LeaseState::Reclaiming));
    assert_eq!(federation.state.requests[&request].lease, Some(lease), "until it ends");
    assert!(scheduler::plan(&federation.state, 10).placements.is_empty(), "one new place is enough");

    federation.run(next);
    assert_eq!(federation.state_of(lease), LeaseState::Reclaiming, "its work is not saved yet");
    federation.report_lease("west", lease, LeaseOutcome::Checkpointed);
    let ended = &federation.state.leases[&lease];
    assert_eq!((ended.state, ended.end_reason), (LeaseState::Ending, Some(EndReason::Reclaimed)));
    assert!(ended.ending_at.unwrap() < ended.reclaim.as_ref().unwrap().deadline, "saved work need not wait");
    let moved = &federation.state.requests[&request];
    assert_eq!((moved.state, moved.lease), (RequestState::Placed, Some(next)));
    assert_eq!(federation.state_of(next), LeaseState::Active);
    // The lease that it replaces is gone, so cancelling ends the remaining one.
    federation.ok(Command::CancelRequest(CancelRequest { request }));
    assert_eq!(federation.state_of(next), LeaseState::Ending);
}

#[test]
fn explanations_say_why_a_reclaimed_lease_has_no_other_place() {
    let mut federation = Federation::ready();
    let (request, lease) = federation.with_work_at_south();
    assert_eq!(explain::explain_pending(&federation.state, request), None);
    federation.offer("north", Offer { generation: 4, ..used(4, &[("n1", 8, 6), ("n2", 8, 7)]) });
    federation.offer("south", used(2, &[("s1", 4, 1)]));
    let proposed = federation.needs("south");
    federation.reclaim(proposed);
    assert!(federation.place().is_empty());
    let sought = explain::explain_pending(&federation.state, request).unwrap();
    let deadline = federation.state.leases[&lease].reclaim.as_ref().unwrap().deadline.to_minute();
    let begins = format!("another place is sought for {lease} until {deadline}: not placed: ");
    assert!(sought.summary.starts_with(&begins), "{}", sought.summary);
    let north = sought.donors.iter().find(|donor| donor.donor == cluster("north")).unwrap();
    let reason = &north.obstacle.as_ref().unwrap().reason;
    assert!(reason.contains("room for 3 of 4 shares"), "{reason}");
    // One more GPU is free: the lease moves, and no other place is sought.
    federation.offer("north", Offer { generation: 5, ..used(5, &[("n1", 8, 6), ("n2", 8, 6)]) });
    assert!(explain::explain_pending(&federation.state, request).unwrap().summary.ends_with("fits on north"));
    assert_eq!(federation.place().len(), 1);
    assert_eq!(explain::explain_pending(&federation.state, request), None);
}

#[test]
fn quotas_count_a_moving_lease_once() {
    const QUOTA: &str = "\napiVersion: policy.comity.dev/v1\nkind: Quota\nmetadata: {name: ten}\nspec: {tenant: team, maxConcurrentGpus: 10}\n";
    let mut federation = Federation::ready();
    federation.also(QUOTA);
    let (_, lease) = federation.with_work_at_south();
    federation.running(at("north", yielding(2, 0)));
    federation.offer("south", used(2, &[("s1", 4, 1)]));
    let proposed = federation.needs("south");
    federation.reclaim(proposed);
    let in_use = |federation: &Federation| federation.state.usage().in_use("team", "users", "", "north").tenant_milli();
    assert_eq!(in_use(&federation), 6_000);
    let next = federation.place()[0];
    assert_eq!(federation.state.leases[&next].moved_from, Some(lease));
    assert_eq!(in_use(&federation), 6_000, "both are there, and count once");
    // Four more GPUs are allowed, although the moving lease holds eight devices.
    federation.running(yielding(4, 0));
    let (code, reason, _) = obstacle(&federation, &at("north", yielding(1, 0)));
    assert_eq!(code, "quota-exhausted");
    assert!(reason.contains("10 are in use"), "{reason}");
    // If its replacement fails, the lease counts again.
    federation.report_lease(
        "north",
        next,
        LeaseOutcome::Failed { code: "broken".into(), message: "no".into(), highest_fencing_token: 0 },
    );
    federation.stop(next);
    assert_eq!((federation.state.leases[&lease].moved_to, in_use(&federation)), (None, 10_000));
}

#[test]
fn if_the_reason_goes_away_the_lease_is_spared_and_its_replacement_ends() {
    let mut federation = Federation::ready();
    let (request, lease) = federation.with_work_at_south();
    federation.offer("south", used(2, &[("s1", 4, 1)]));
    let proposed = federation.needs("south");
    federation.reclaim(proposed);
    let next = federation.place()[0];
    assert!(spared(&federation.state).is_empty());
    federation.ok(Command::MarkClusters(MarkClusters { heard: Vec::new(), silent: vec![cluster("west")] }));
    assert_eq!(federation.state_of(lease), LeaseState::Reclaiming);
    federation.offer("south", used(3, &[("s1", 4, 0)]));
    assert_eq!(spared(&federation.state), [lease]);
    federation.reclaim(Vec::new());
    assert_eq!(federation.state_of(lease), LeaseState::Suspect, "its origin is silent");
    assert_eq!(federation.state.leases[&next].end_reason, Some(EndReason::NotNeeded));
    assert_eq!(federation.state.requests[&request].lease, Some(lease));
    federation.ok(Command::MarkClusters(MarkClusters { heard: vec![cluster("west")], silent: Vec::new() }));
    assert_eq!(federation.state_of(lease), LeaseState::Active);
}

#[test]
fn a_reserve_and_withdrawn_terms_reclaim_no_more_than_needed() {
    let mut federation = Federation::ready();
    let (_, first) = federation.running(at("north", yielding(6, 0)));
    let (_, second) = federation.running(at("north", yielding(2, 0)));
    let (_, third) = federation.running(at("north", yielding(1, 0)));
    // 16 − 9 lent − 6 local: one is free, and the reserve is two.
    let terms = |extra: &str| {
        format!(
            "\napiVersion: policy.comity.dev/v1\nkind: Cluster\nmetadata: {{name: north}}\nspec: {{institution: lenders, lends: [{{classes: [big, small]}}], delivery: [namespace, virtual-node]{extra}}}\n"
        )
    };
    federation.with_terms_of_north(&terms(", localReserveGpus: 2"));
    federation.offer("north", used(2, &[("n1", 8, 0), ("n2", 8, 6)]));
    assert_eq!(federation.needs("north"), [ProposedReclaim { lease: third, reason: ReclaimReason::LocalNeed }]);
    // At most seven may be lent: the smallest sufficient lease is reclaimed.
    federation.with_terms_of_north(&terms(", maxLentGpus: 7"));
    let over = ReclaimReason::PolicyChanged { code: "donor-exhausted".into(), treatment: LeaseTreatment::Drain };
    assert_eq!(federation.needs("north"), [ProposedReclaim { lease: second, reason: over }]);
    // "accepting: false" affects only new leases; without terms all leases are reclaimed.
    federation.with_terms_of_north(&terms(", accepting: false"));
    assert!(federation.needs("north").is_empty());
    federation.with_terms_of_north("");
    let gone = ReclaimReason::PolicyChanged { code: "unknown-donor".into(), treatment: LeaseTreatment::Drain };
    let all = [first, second, third].map(|lease| ProposedReclaim { lease, reason: gone.clone() });
    assert_eq!(federation.needs("north"), all);
    let reclaims = federation.needs("north");
    assert_eq!(federation.reclaim(reclaims).len(), 3);
}

#[test]
fn if_local_work_is_counted_on_a_lent_device_the_next_node_serves() {
    let mut federation = Federation::ready();
    federation.offer("south", offer(2, &[]));
    federation.offer("north", used(2, &[("n1", 2, 0)]));
    let (_, lease) = federation.running(yielding(1, 0));
    let device = *federation.state.leases[&lease].placement.nodes[&node("n1")].devices.keys().next().unwrap();
    // The lease has one of two devices; Kubernetes does not tell which.
    let mut made = used(3, &[("n1", 2, 0), ("n2", 2, 0)]);
    made.nodes.get_mut(&node("n1")).unwrap().devices[device as usize].local_use_milli = 1_000;
    federation.offer("north", made);
    assert!(federation.needs("north").is_empty(), "both have what they need");
    federation.submit(yielding(1, 0));
    let placed = federation.place();
    let at: Vec<_> = placed.iter().flat_map(|id| federation.state.leases[id].placement.nodes.keys()).collect();
    assert_eq!(at, [&node("n2")]);
}

#[test]
fn preemption_takes_the_place_that_costs_least() {
    let mut federation = Federation::with_preemption();
    let mut planner = Planner::default();
    let keeps = RequestSpec { duration: Millis::from_hours(2), ..spec(8, Share::Whole, "big") };
    let (_, keeps) = federation.running(at("north", keeps));
    let (_, old) = federation.running(at("north", yielding(4, 20 * MINUTE)));
    federation.now += 60 * MINUTE;
    let (_, young) = federation.running(at("north", yielding(4, 20 * MINUTE)));
    let (_, south) = federation.running(at("south", yielding(4, 0)));
    federation.ok(Command::CheckpointLease(CheckpointLease { lease: south }));
    federation.now += 10 * MINUTE;
    assert!(planner.plan(&federation.state, 10).reclaims.is_empty(), "nobody asks");

    // Six GPUs of one node fit only in place of two leases of four.
    let mut wide = urgent(6);
    wide.topology.same_node = true;
    let wide = federation.submit(wide);
    let plan = planner.plan(&federation.state, 10);
    let mut taken: Vec<LeaseId> = plan.reclaims.iter().map(|reclaim| reclaim.lease).collect();
    taken.sort_unstable();
    assert_eq!(taken, [old, young]);
    federation.ok(Command::CancelRequest(CancelRequest { request: wide }));

    // Three GPUs fit in place of any lease of four: the one whose work was saved loses least.
    let narrow = federation.submit(urgent(3));
    let plan = planner.plan(&federation.state, 10);
    assert_eq!(plan.reclaims, lost(narrow, south));
    federation.reclaim(plan.reclaims);
    assert_eq!(federation.state.requests[&narrow].room_at, Some(cluster("south")));
    let deadline = federation.state.leases[&south].reclaim.clone().unwrap().deadline;
    assert_eq!(deadline.0, federation.now + GRACE, "the donor's grace is longer than the request's");
    // No other lease is reclaimed for it, and no request passes it.
    let passer = federation.submit(at("south", spec(1, Share::Whole, "big")));
    let plan = planner.plan(&federation.state, 10);
    assert!(plan.reclaims.is_empty() && plan.placements.is_empty(), "{plan:?}");

    federation.report_lease("west", south, LeaseOutcome::Checkpointed);
    assert_eq!(federation.state.leases[&south].end_reason, Some(EndReason::Preempted));
    assert_eq!(federation.place(), [], "its donor has not cleared it");
    federation.stop(south);
    let placements = planner.plan(&federation.state, 10).placements;
    assert_eq!(placements.iter().map(|placed| placed.request).collect::<Vec<_>>(), [narrow, passer]);
    federation.ok(Command::PlaceRequests(PlaceRequests { placements }));
    assert_eq!(federation.state.requests[&narrow].room_at, None);
    assert_eq!(federation.state_of(keeps), LeaseState::Active, "it did not say that it may be preempted");
}

#[test]
fn preemption_waits_for_a_connecting_lease_that_suffices() {
    let mut federation = Federation::with_preemption();
    let mut planner = Planner::default();
    federation.offer("north", offer(2, &[]));
    let (_, large) = federation.running(at("south", yielding(3, 0)));
    federation.submit(at("south", yielding(1, 0)));
    let small = federation.place()[0];
    let asked = federation.submit(at("south", urgent(1)));
    let plan = planner.plan(&federation.state, 10);
    assert!(plan.reclaims.is_empty(), "three are taken where one will do: {:?}", plan.reclaims);
    // Once the small lease is active, it is reclaimed, and the large one stays.
    federation.run(small);
    federation.now += MINUTE;
    federation.ok(Command::Expire(Expire {}));
    assert_eq!(planner.plan(&federation.state, 10).reclaims, lost(asked, small));
    assert_eq!(federation.state_of(large), LeaseState::Active);

    // If the small lease does not suffice, the request does not wait for it.
    let mut federation = Federation::with_preemption();
    federation.offer("north", offer(2, &[]));
    let (_, large) = federation.running(at("south", yielding(3, 0)));
    federation.submit(at("south", yielding(1, 0)));
    federation.place();
    let asked = federation.submit(at("south", urgent(3)));
    assert_eq!(Planner::default().plan(&federation.state, 10).reclaims, lost(asked, large));
}

#[test]
fn invalid_preemptions_are_refused_and_needless_ones_spare_the_lease() {
    let mut federation = Federation::with_preemption();
    for _ in 0..2 {
        federation.running(at("north", spec(8, Share::Whole, "big")));
    }
    let (_, lease) = federation.running(at("south", yielding(4, 20 * MINUTE)));
    let plain = federation.submit(spec(2, Share::Whole, "big"));
    let waiting = federation.submit(urgent(2));
    let refused = |federation: &mut Federation, reclaims: Vec<ProposedReclaim>| match federation
        .ok(Command::ReclaimLeases(ReclaimLeases { spare: Vec::new(), reclaims }))
        .reply
        .unwrap()
    {
        ReplyBody::Reclaimed { leases, refused, .. } => leases.is_empty() && !refused.is_empty(),
        other => panic!("{other:?}"),
    };
    assert!(refused(&mut federation, lost(plain, lease)), "its class may not preempt");
    let keeps = federation.state.live_leases().find(|(id, _)| *id != lease).unwrap().0;
    assert!(refused(&mut federation, lost(waiting, keeps)), "it may not be preempted");
    let both = [lost(waiting, lease), lost(waiting, keeps)].concat();
    assert!(refused(&mut federation, both));
    assert!(refused(&mut federation, vec![ProposedReclaim { lease, reason: ReclaimReason::LocalNeed }]));

    federation.reclaim(lost(waiting, lease));
    let reclaim = federation.state.leases[&lease].reclaim.clone().unwrap();
    assert_eq!(reclaim.grace, Millis(20 * MINUTE), "the request asks for more than the donor gives");
    assert!(spared(&federation.state).is_empty());
    federation.ok(Command::CancelRequest(CancelRequest { request: waiting }));
    assert_eq!(spared(&federation.state), [lease]);
    federation.reclaim(Vec::new());
    assert_eq!(federation.state_of(lease), LeaseState::Active);
    assert_eq!(federation.state.leases[&lease].reclaim, None);
}

#[test]
fn invalid_checkpoints_and_reclaims_are_refused() {
    let mut federation = Federation::ready();
    let much = RequestSpec {
        preemptible: Some(Preemptible { grace: Millis(u64::MAX), checkpoint: false, same_gpu_type: false }),
        ..spec(1, Share::Whole, "big")
    };
    assert_eq!(much.check().unwrap_err().field, "spec.preemptible.grace_ms");
    let request = federation.submit(yielding(1, 0));
    let lease = federation.place()[0];
    let early = federation.refused(Command::CheckpointLease(CheckpointLease { lease }));
    assert_eq!((early.code, early.field.as_str()), (Code::WrongState, "lease"));
    assert_eq!(
        federation.refused(Command::CheckpointLease(CheckpointLease { lease: LeaseId(99) })).code,
        Code::NotFound
    );
    federation.run(lease);
    let donor = federation.state.leases[&lease].placement.donor.clone();
    let fencing_token = federation.state.leases[&lease].fencing_token;
    let outcome = LeaseOutcome::Checkpointed;
    let report = comity_core::command::ReportLease { cluster: donor, lease, fencing_token, outcome };
    assert_eq!(federation.refused(Command::ReportLease(report)).code, Code::PermissionDenied);
    federation.ok(Command::CheckpointLease(CheckpointLease { lease }));
    assert_eq!(federation.state_of(lease), LeaseState::Active, "nothing ends that is not reclaimed");
    assert_eq!(federation.state.requests[&request].state, RequestState::Placed);
    let many = vec![ProposedReclaim { lease, reason: ReclaimReason::LocalNeed }; 65];
    let refusal = federation.refused(Command::ReclaimLeases(ReclaimLeases { spare: Vec::new(), reclaims: many }));
    assert_eq!(refusal.value, "65");
}

#[test]
fn an_outage_lengthens_the_notice() {
    let mut federation = Federation::ready();
    let (_, lease) = federation.with_work_at_south();
    federation.offer("south", used(2, &[("s1", 4, 4)]));
    let proposed = federation.needs("south");
    federation.reclaim(proposed);
    let before = federation.state.leases[&lease].reclaim.clone().unwrap();
    federation.now += GRACE;
    let outage = Millis(GRACE / 2);
    federation.ok(Command::BeginTerm(comity_core::command::BeginTerm {
        broker: 1,
        outage,
        nonce_key: NonceKey::default(),
    }));
    let reclaim = federation.state.leases[&lease].reclaim.clone().unwrap();
    assert_eq!(reclaim.deadline, before.deadline.after(outage));
}
