//! Leases migrate so that a request fits although free capacity is fragmented.

use std::collections::BTreeMap;

use comity_core::command::{CheckpointLease, LeaseOutcome, PlaceRequests, ReclaimLeases, ReleaseLease};
use comity_core::demand::Preemptible;
use comity_core::demand::{RequestSpec, Share, Topology};
use comity_core::explain;
use comity_core::feasibility::spared;
use comity_core::inventory::Sharing;
use comity_core::proposal::ProposedReclaim;
use comity_core::reclaim::ReclaimReason;
use comity_core::scheduler::Planner;
use comity_core::{Command, Millis, ReplyBody};
use comity_types::{EndReason, LeaseId, LeaseState, LeaseTreatment, NodeId, PriorityName, RequestId, RequestState};
use proptest::prelude::*;

use super::federation::{Federation, cluster, device, offer, spec};
use super::revocations::evict;
use super::user_requests::revoke_alice;

const HOUR: u64 = 3_600_000;
/// GPUs of each node.
const GPUS: u64 = 4;

fn on_one_node(count: u32) -> RequestSpec {
    let topology = Topology { same_node: true, ..Topology::default() };
    let long = RequestSpec { duration: Millis::from_hours(24), ..spec(count, Share::Whole, "big") };
    RequestSpec { topology, allow_donors: vec![cluster("north")], ..long }
}

/// A request whose work may move.
fn movable(count: u32) -> RequestSpec {
    RequestSpec {
        preemptible: Some(Preemptible { grace: Millis(0), checkpoint: true, same_gpu_type: false }),
        ..on_one_node(count)
    }
}

/// `nodes` nodes at `north`, on which these requests have run for two hours.
fn with_leases(nodes: usize, specs: &[RequestSpec]) -> (Federation, Vec<RequestId>) {
    let mut federation = Federation::with_rivals();
    let names = ["n1", "n2", "n3", "n4"];
    let like = device(81_559, Sharing::Exclusive);
    let nodes: Vec<_> = names[..nodes].iter().map(|name| (*name, 4, like.clone())).collect();
    federation.offer("north", offer(2, &nodes));
    let requests: Vec<RequestId> = specs.iter().map(|spec| federation.submit(spec.clone())).collect();
    federation.place().into_iter().for_each(|lease| federation.run(lease));
    federation.now += 2 * HOUR;
    (federation, requests)
}

impl Federation {
    /// Releases a request's lease.
    fn give_back(&mut self, request: RequestId) {
        if let Some(lease) = self.state.requests[&request].lease {
            self.ok(Command::ReleaseLease(ReleaseLease { lease }));
            self.stop(lease);
        }
    }

    /// Submits a request and lets it wait until migrations are allowed for it.
    fn waits_long(&mut self, spec: RequestSpec) -> RequestId {
        let request = self.submit(spec);
        assert!(self.place().is_empty());
        self.now += HOUR;
        self.ok(Command::Expire(comity_core::command::Expire {}));
        request
    }

    fn migrations(&self) -> Vec<ProposedReclaim> {
        Planner::default().plan(&self.state, 100).reclaims
    }

    /// GPUs of each node that are not lent.
    fn free(&self) -> BTreeMap<NodeId, u64> {
        let donor = cluster("north");
        let nodes = self.state.clusters[&donor].offer.as_ref().unwrap().nodes.keys();
        let lent = |id: &NodeId| {
            let node = self.state.occupancy().node(&donor, id);
            node.map_or(0, |node| node.devices.values().map(|milli| u64::from(*milli)).sum::<u64>() / 1_000)
        };
        nodes.map(|id| (id.clone(), GPUS - lent(id))).collect()
    }

    /// Leases whose move to another node frees `count` GPUs of one node, found by trying each.
    fn one_move(&self, count: u64) -> Vec<LeaseId> {
        let free = self.free();
        let moves = self.state.live_leases().filter(|(_, lease)| {
            let may = self.state.requests[&lease.request].spec.preemptible.is_some();
            let (size, home) = (lease.placement.milli() / 1_000, lease.placement.nodes.keys().next().unwrap());
            let elsewhere = free.iter().any(|(id, free)| id != home && *free >= size);
            may && lease.state == LeaseState::Active && free[home] + size >= count && elsewhere
        });
        moves.map(|(id, _)| id).collect()
    }

    /// The reclaimed leases move, save their work and end; then `request` is placed.
    fn carry_out(&mut self, reclaims: Vec<ProposedReclaim>, request: RequestId) {
        let moved: Vec<LeaseId> = reclaims.iter().map(|reclaim| reclaim.lease).collect();
        assert_eq!(self.reclaim(reclaims).len(), moved.len());
        let next = self.place();
        assert_eq!(next.len(), moved.len(), "each has its place at once");
        for old in &moved {
            // Although its work is saved, the lease continues until its new place is usable.
            self.ok(Command::CheckpointLease(CheckpointLease { lease: *old }));
            assert_eq!(self.state.leases[old].state, LeaseState::Reclaiming);
        }
        next.into_iter().for_each(|lease| self.run(lease));
        for old in moved {
            assert_eq!(self.state.leases[&old].end_reason, Some(EndReason::Reclaimed));
            self.stop(old);
        }
        self.place();
        assert_eq!(self.state.requests[&request].state, RequestState::Placed);
    }
}

#[test]
fn a_lease_moves_aside_for_a_request_that_has_waited_long() {
    // Two nodes with two GPUs free each; a lease of two moves to the other node.
    let (mut federation, running) = with_leases(2, &[movable(2), movable(2), movable(2), movable(2)]);
    federation.give_back(running[1]);
    federation.give_back(running[2]);
    assert_eq!(federation.free().into_values().collect::<Vec<_>>(), [2, 2]);
    let request = federation.submit(on_one_node(4));
    federation.place();
    assert!(federation.migrations().is_empty(), "it has not waited for long");
    let summary = explain::explain_waiting(&federation.state, request).unwrap().explanation.summary;
    assert!(summary.contains("it would fit on north after moving lease-"), "{summary}");
    federation.now += HOUR;
    federation.ok(Command::Expire(comity_core::command::Expire {}));
    let reclaims = federation.migrations();
    assert_eq!(reclaims.len(), 1);
    assert_eq!(reclaims[0].reason, ReclaimReason::Migration { by: request });
    federation.carry_out(reclaims, request);
    // A lease that has moved does not move again for an hour.
    let moved = federation.state.live_leases().find(|(_, lease)| lease.moved_from.is_some()).unwrap().0;
    federation.ok(Command::ReleaseLease(ReleaseLease { lease: federation.state.requests[&request].lease.unwrap() }));
    let other = federation.submit(on_one_node(4));
    let reclaims = vec![ProposedReclaim { lease: moved, reason: ReclaimReason::Migration { by: other } }];
    let command = Command::ReclaimLeases(ReclaimLeases { spare: Vec::new(), reclaims });
    assert!(matches!(federation.ok(command).reply, Ok(ReplyBody::Reclaimed { leases, .. }) if leases.is_empty()));
}

#[test]
fn a_lease_whose_new_place_fails_stays() {
    let (mut federation, running) = with_leases(2, &[movable(2), movable(2), movable(2), movable(2)]);
    federation.give_back(running[1]);
    federation.give_back(running[2]);
    let request = federation.waits_long(on_one_node(4));
    let reclaims = federation.migrations();
    let lease = reclaims[0].lease;
    federation.reclaim(reclaims);
    let next = federation.place()[0];
    // The new place fails, and nothing else is free for long enough: at the deadline the lease is active again.
    let failed = LeaseOutcome::Failed { code: "quota".into(), message: "no".into(), highest_fencing_token: 0 };
    federation.report_lease("north", next, failed);
    let deadline = federation.state.leases[&lease].reclaim.clone().unwrap().deadline.0;
    federation.expire_at(deadline);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
    assert_eq!(federation.state.requests[&request].state, RequestState::Queued);
    // If the waiting request is cancelled meanwhile, the lease is spared.
    federation.stop(next);
    federation.now += 60_000;
    let again = federation.migrations();
    if let Some(reclaim) = again.first().cloned() {
        federation.reclaim(again);
        federation.ok(Command::CancelRequest(comity_core::command::CancelRequest { request }));
        assert_eq!(spared(&federation.state), [reclaim.lease]);
    }
}

#[test]
fn a_lease_that_moves_ends_instead_once_its_user_is_drained() {
    let (mut federation, running) = with_leases(2, &[movable(2), movable(2), movable(2), movable(2)]);
    federation.give_back(running[1]);
    federation.give_back(running[2]);
    let request = federation.submit_as("bob", on_one_node(4));
    federation.place();
    federation.now += HOUR;
    federation.ok(Command::Expire(comity_core::command::Expire {}));
    let reclaims = federation.migrations();
    let lease = reclaims[0].lease;
    federation.reclaim(reclaims);
    let next = federation.place()[0];
    revoke_alice(&mut federation, LeaseTreatment::Drain);
    assert_eq!(federation.state.leases[&next].state, LeaseState::Ending);
    let reclaim = federation.state.leases[&lease].reclaim.clone().unwrap();
    assert_eq!(reclaim.reason, ReclaimReason::UserRevoked { by: Some(request) });
    assert!(federation.migrations().is_empty());
    federation.expire_at(reclaim.deadline.0);
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::Cancelled));
    federation.stop(next);
    federation.stop(lease);
    federation.place();
    assert_eq!(federation.state.requests[&request].state, RequestState::Placed);
}

#[test]
fn a_lease_that_moves_ends_once_its_donor_is_drained() {
    let (mut federation, running) = with_leases(2, &[movable(2), movable(2), movable(2), movable(2)]);
    federation.give_back(running[1]);
    federation.give_back(running[2]);
    let request = federation.waits_long(on_one_node(4));
    let reclaims = federation.migrations();
    let lease = reclaims[0].lease;
    federation.reclaim(reclaims);
    let next = federation.place()[0];
    federation.ok(evict("north", LeaseTreatment::Drain));
    assert_eq!(federation.state.leases[&next].state, LeaseState::Ending, "it was at the same donor");
    federation.ok(Command::CancelRequest(comity_core::command::CancelRequest { request }));
    assert_eq!(spared(&federation.state), []);
    let deadline = federation.state.leases[&lease].reclaim.clone().unwrap().deadline.0;
    federation.expire_at(deadline);
    assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::DonorRevoked));
}

#[test]
fn only_leases_that_allow_it_move_and_not_for_lower_priorities() {
    let low = RequestSpec { priority: Some(PriorityName::parse("low", "priority").unwrap()), ..on_one_node(4) };
    let keeps = RequestSpec { preemptible: None, ..movable(2) };
    let blind = RequestSpec {
        preemptible: Some(Preemptible { grace: Millis(0), checkpoint: false, same_gpu_type: false }),
        ..movable(2)
    };
    for (asked, runs) in [(low, movable(2)), (on_one_node(4), keeps), (on_one_node(4), blind)] {
        let (mut federation, running) = with_leases(2, &[runs.clone(), runs.clone(), runs.clone(), runs]);
        federation.give_back(running[1]);
        federation.give_back(running[2]);
        let request = federation.waits_long(asked);
        assert!(federation.migrations().is_empty());
        // `apply` refuses such a migration too.
        let lease = federation.state.requests[&running[0]].lease.unwrap();
        let reclaims = vec![ProposedReclaim { lease, reason: ReclaimReason::Migration { by: request } }];
        let command = Command::ReclaimLeases(ReclaimLeases { spare: Vec::new(), reclaims });
        assert!(matches!(federation.ok(command).reply, Ok(ReplyBody::Reclaimed { leases, .. }) if leases.is_empty()));
    }
}

fn any_lease() -> impl Strategy<Value = (RequestSpec, bool)> {
    (1..4_u32, proptest::bool::weighted(0.7), any::<bool>())
        .prop_map(|(count, moves, stays)| (if moves { movable(count) } else { on_one_node(count) }, stays))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// If moving one lease lets a request fit, found by trying each, then the planner moves one; it never moves more
    /// than two. `apply` accepts the proposal, the leases have their new places at once, and then the request fits.
    #[test]
    fn a_migration_by_one_move_is_found_if_there_is_one(
        nodes in 2..5_usize,
        leases in proptest::collection::vec(any_lease(), 1..12),
        count in 2..5_u32,
    ) {
        let specs: Vec<RequestSpec> = leases.iter().map(|(spec, _)| spec.clone()).collect();
        let (mut federation, running) = with_leases(nodes, &specs);
        for (request, (_, stays)) in running.iter().zip(&leases) {
            if federation.state.requests[request].state == RequestState::Queued {
                federation.ok(Command::CancelRequest(comity_core::command::CancelRequest { request: *request }));
            } else if !stays {
                federation.give_back(*request);
            }
        }
        let fits = federation.free().into_values().any(|free| free >= u64::from(count));
        prop_assume!(!fits);
        let request = federation.waits_long(on_one_node(count));
        let (expected, found) = (federation.one_move(u64::from(count)), federation.migrations());
        if !expected.is_empty() {
            prop_assert_eq!(found.len(), 1, "one of {:?} would do", expected);
        }
        prop_assert!(found.len() <= 2);
        if !found.is_empty() {
            federation.carry_out(found, request);
        }
        let placements = Planner::default().plan(&federation.state, 100).placements;
        federation.ok(Command::PlaceRequests(PlaceRequests { placements }));
    }
}
