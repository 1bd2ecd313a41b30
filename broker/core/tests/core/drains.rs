//! Leases that are drained while they are being reclaimed for another reason, and what their requests become.

use comity_core::command::{CancelRequest, CheckpointLease, LeaseOutcome};
use comity_core::demand::Share;
use comity_core::feasibility::spared;
use comity_core::scheduler::Planner;
use comity_core::{Command, Timestamp};
use comity_types::LeaseTreatment::{Drain, Finish, Stop};
use comity_types::{EndReason, LeaseId, LeaseState, RequestId, RequestState};

use super::federation::{Federation, spec};
use super::reclaim::{MINUTE, at, urgent, used, yielding};
use super::revocations::{evict, lent, replace, resume, suspend};

impl Federation {
    fn deadline_of(&self, lease: LeaseId) -> Timestamp {
        self.state.leases[&lease].reclaim.as_ref().unwrap().deadline
    }

    fn reason_of(&self, lease: LeaseId) -> String {
        self.state.leases[&lease].reclaim.as_ref().unwrap().reason.to_string()
    }

    /// Nobody spares the lease, and it ends with this reason at its deadline.
    fn ends_drained(&mut self, lease: LeaseId, reason: EndReason) {
        assert_eq!(self.state.leases[&lease].state, LeaseState::Reclaiming);
        assert_eq!(spared(&self.state), []);
        self.reclaim(Vec::new());
        self.expire_at(self.deadline_of(lease).0);
        assert_eq!(self.state.leases[&lease].end_reason, Some(reason));
    }

    fn state_of_request(&self, request: RequestId) -> RequestState {
        self.state.requests[&request].state
    }
}

/// bob's request of three GPUs waits for alice's lease on `south`, which it preempts.
fn preempted() -> (Federation, LeaseId, RequestId) {
    let mut federation = Federation::with_preemption();
    let (_, lease) = federation.running(at("south", yielding(4, 0)));
    for _ in 0..4 {
        federation.submit_as("carol", at("north", yielding(4, 0)));
    }
    federation.place().into_iter().for_each(|lease| federation.run(lease));
    federation.now += 10 * MINUTE;
    federation.ok(Command::CheckpointLease(CheckpointLease { lease }));
    let asked = federation.submit_as("bob", urgent(3));
    let reclaims = Planner::default().plan(&federation.state, 10).reclaims;
    assert_eq!(federation.reclaim(reclaims), [lease]);
    (federation, lease, asked)
}

/// A lease on `south` whose GPUs local work needs, and its request.
fn needed_back() -> (Federation, RequestId, LeaseId) {
    let mut federation = Federation::ready();
    federation.offer("north", used(2, &[]));
    let (request, lease) = federation.running(yielding(4, 0));
    federation.offer("north", used(3, &[("n1", 8, 0)]));
    federation.offer("south", used(2, &[("s1", 4, 1)]));
    let proposed = federation.needs("south");
    assert_eq!(federation.reclaim(proposed), [lease]);
    (federation, request, lease)
}

#[test]
fn a_preempted_lease_is_drained_although_its_preemptor_withdraws() {
    let (mut federation, lease, asked) = preempted();
    let deadline = federation.deadline_of(lease);
    federation.now += MINUTE;
    federation.ok(evict("south", Drain));
    assert_eq!(federation.deadline_of(lease), deadline, "its notice goes on");
    assert_eq!(federation.reason_of(lease), "its donor was evicted or suspended");
    // The room at the evicted donor is nobody's: the request looks for other room.
    let elsewhere = Planner::default().plan(&federation.state, 10).reclaims;
    assert!(
        !elsewhere.is_empty() && elsewhere.iter().all(|it| it.reason.for_request() == Some(asked)),
        "{elsewhere:?}"
    );
    federation.ok(Command::CancelRequest(CancelRequest { request: asked }));
    federation.ends_drained(lease, EndReason::DonorRevoked);
}

#[test]
fn a_preempted_lease_that_is_drained_for_its_origin_still_makes_room() {
    let (mut federation, lease, asked) = preempted();
    federation.ok(suspend("western", Drain));
    let reclaim = federation.state.leases[&lease].reclaim.clone().unwrap();
    assert_eq!(reclaim.reason.for_request(), Some(asked));
    assert!(Planner::default().plan(&federation.state, 10).reclaims.is_empty(), "that lease is enough");
    federation.ends_drained(lease, EndReason::OriginRevoked);
    federation.report_lease("south", lease, LeaseOutcome::Clean);
    federation.place();
    assert_eq!(federation.state_of_request(asked), RequestState::Placed);
}

#[test]
fn a_lease_that_local_work_needs_is_drained_although_the_need_goes_away() {
    for exclusion in [evict("west", Drain), suspend("western", Drain)] {
        let (mut federation, request, lease) = needed_back();
        federation.ok(exclusion);
        federation.offer("south", used(3, &[("s1", 4, 0)]));
        federation.ends_drained(lease, EndReason::OriginRevoked);
        assert_eq!(federation.state_of_request(request), RequestState::Cancelled);
    }
}

#[test]
fn a_lease_is_drained_as_long_as_one_of_its_sides_is() {
    // Both sides are drained, in either order; then the donor's takes part again.
    for exclusions in
        [[suspend("lenders", Drain), evict("west", Drain)], [evict("west", Drain), suspend("lenders", Drain)]]
    {
        let (mut federation, request, lease, _) = lent();
        exclusions.into_iter().for_each(|exclusion| drop(federation.ok(exclusion)));
        federation.ok(resume("lenders"));
        assert_eq!(federation.reason_of(lease), "its origin was evicted or suspended");
        federation.ends_drained(lease, EndReason::OriginRevoked);
        assert_eq!(federation.state_of_request(request), RequestState::Cancelled);
    }
    // The origin's takes part again, by a new token or because it is resumed: the request goes on.
    let again: [Vec<Command>; 2] = [vec![resume("western")], replace("west", "again", "ed25519:west").into()];
    for (exclusion, again) in [suspend("western", Drain), evict("west", Drain)].into_iter().zip(again) {
        let (mut federation, request, lease, _) = lent();
        federation.ok(suspend("lenders", Drain));
        federation.ok(exclusion);
        again.into_iter().for_each(|command| drop(federation.ok(command)));
        assert_eq!(federation.reason_of(lease), "its donor was evicted or suspended");
        federation.ends_drained(lease, EndReason::DonorRevoked);
        assert_eq!(federation.state_of_request(request), RequestState::Queued);
    }
}

#[test]
fn a_drain_shortens_a_longer_notice() {
    let mut federation = Federation::with_preemption();
    federation.offer("north", used(2, &[]));
    let (_, lease) = federation.running(at("south", yielding(4, 60 * MINUTE)));
    let asked = federation.submit_as("bob", urgent(3));
    let reclaims = Planner::default().plan(&federation.state, 10).reclaims;
    assert_eq!(federation.reclaim(reclaims), [lease]);
    let promised = federation.deadline_of(lease);
    federation.ok(evict("south", Drain));
    let reclaim = federation.state.leases[&lease].reclaim.clone().unwrap();
    assert!(reclaim.deadline < promised && reclaim.deadline == reclaim.since.after(reclaim.grace), "{reclaim:?}");
    federation.ok(Command::CancelRequest(CancelRequest { request: asked }));
    federation.ends_drained(lease, EndReason::DonorRevoked);
}

#[test]
fn a_drained_replacement_keeps_its_notice_when_its_predecessor_ends() {
    let (mut federation, request, lease) = needed_back();
    let next = federation.place()[0];
    federation.run(next);
    federation.now += MINUTE;
    federation.ok(evict("west", Drain));
    assert!(federation.deadline_of(lease) < federation.deadline_of(next));
    federation.ends_drained(lease, EndReason::OriginRevoked);
    assert_eq!(federation.state.leases[&next].state, LeaseState::Reclaiming);
    assert_eq!(federation.state.requests[&request].lease, Some(next));
    federation.ends_drained(next, EndReason::OriginRevoked);
    assert_eq!(federation.state_of_request(request), RequestState::Cancelled);
}

#[test]
fn a_request_of_an_evicted_origin_does_not_wait_for_its_return() {
    let fails = |federation: &mut Federation, lease| {
        let failed = LeaseOutcome::Failed { code: "x".into(), message: "y".into(), highest_fencing_token: 0 };
        federation.report_lease("north", lease, failed);
    };
    for donor_is_evicted in [false, true] {
        let (mut federation, request, lease, _) = lent();
        federation.ok(evict("west", Finish));
        if donor_is_evicted {
            federation.ok(evict("north", Stop));
            assert_eq!(federation.state.leases[&lease].end_reason, Some(EndReason::DonorRevoked));
        } else {
            fails(&mut federation, lease);
        }
        let ended = &federation.state.requests[&request];
        assert_eq!(ended.state, RequestState::Cancelled);
        assert!(ended.message.ends_with("cluster west was evicted"), "{}", ended.message);
        replace("west", "again", "ed25519:west").into_iter().for_each(|command| drop(federation.ok(command)));
        assert!(federation.place().is_empty());
    }
    // That of a suspended one waits, like those that wait already, unless the suspension drains it.
    for (treatment, state) in [(Finish, RequestState::Queued), (Drain, RequestState::Cancelled)] {
        let (mut federation, request, lease, _) = lent();
        let waiting = federation.submit(spec(64, Share::Whole, "big"));
        federation.ok(suspend("western", treatment));
        fails(&mut federation, lease);
        assert_eq!(federation.state_of_request(request), state, "{treatment:?}");
        assert_eq!(federation.state_of_request(waiting), RequestState::Queued);
    }
}
