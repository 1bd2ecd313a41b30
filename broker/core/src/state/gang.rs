//! Gangs with several leases, called parts: the one module that keeps the parts of a gang together.
//!
//! A gang has one lease per donor, plus one for each time that members joined later. Until the gang runs, its parts
//! succeed or fail together: one step places them all, and if one fails before all are active, all end and the request
//! waits again with its original age. After that, they are renewed and released together. If a donor reclaims a part,
//! the gang ends only if fewer than `min` members remain.
//!
//! Members that join later get a new lease; the first lease does not change. To agents, a lease is one placement under
//! one id and fencing token from beginning to end. If the new lease fails, the running members are unaffected.
//!
//! Each part is reclaimed and replaced on its own, and so is its replacement ([`Request::chains`]). The same holds for
//! a part whose device, node or donor fails while work can still be saved. A part that is gone at once counts as
//! reclaimed without notice: the gang continues and new members join in its place, or it ends if too few members
//! remain.

use comity_types::{ClusterId, EndReason, LeaseId, LeaseState, RequestState};

use crate::model::demand::{Members, RequestSpec};
use crate::model::lease::Lease;
use crate::model::limits::MAX_PARTS;
use crate::model::proposal::{PlacementKind, ProposedPlacement};
use crate::model::refusal::{Code, Refusal};
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::state::State;

/// The purpose of a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// An initial lease of the request.
    Starts,
    /// A replacement for a lease under reclaim.
    Replaces(LeaseId),
    /// Members that join a running gang.
    Joins,
}

/// Effect of a lease's end on its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The request continues without the lease.
    Continues,
    /// The request ends too, as the lease's end reason says, and so do its other leases.
    Ends,
}

/// When a request's leases are released because all are idle; `None` if one of them is not, or may stay idle.
pub(crate) fn idle_due(state: &State, request: &Request) -> Option<Timestamp> {
    let placed = Some(request).filter(|request| request.state == RequestState::Placed)?;
    parts(state, placed).map(|(_, lease)| lease.idle_due()).collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// Existing leases of a request, the first one first.
pub(crate) fn parts<'s>(state: &'s State, request: &'s Request) -> impl Iterator<Item = (LeaseId, &'s Lease)> {
    request.leases().filter_map(|id| Some((id, state.leases.get(&id)?)))
}

/// Number of members on a lease.
pub(crate) fn members_of(spec: &RequestSpec, lease: &Lease) -> u32 {
    lease.gpus.count / spec.gpus.count.max(1)
}

/// Thousandths of devices that all leases of a request hold.
pub(crate) fn held_milli(state: &State, request: &Request) -> u64 {
    parts(state, request).fold(0, |all, (_, lease)| lease.placement.milli().saturating_add(all))
}

/// Whether all initial parts have become active, so that the gang can work.
pub(crate) fn has_started(state: &State, request: &Request) -> bool {
    parts(state, request).all(|(_, lease)| was_added_later(lease) || !lease.state.is_held())
}

/// Whether a lease was added to a running gang, with more members or as a replacement.
pub(crate) fn was_added_later(lease: &Lease) -> bool {
    lease.joins || lease.moved_from.is_some()
}

/// Effect on the request of the end of lease `id`. `was` is the lease's previous state.
pub(crate) fn fate_of_request(state: &State, request: &Request, id: LeaseId, lease: &Lease, was: LeaseState) -> Fate {
    let reason = lease.end_reason.unwrap_or(EndReason::Released);
    let failed = reason.retries() || reason == EndReason::OriginFailed;
    if lease.joins && was.is_held() && failed {
        return Fate::Continues;
    }
    let Some(members) = request.spec.members.filter(|_| reason.retries() && (was_added_later(lease) || !was.is_held()))
    else {
        return Fate::Ends;
    };
    let rest = parts(state, request).filter(|(other, _)| *other != id);
    let works = rest.filter(|(_, lease)| lease.state.is_in_force());
    let left: u32 = works.map(|(_, lease)| members_of(&request.spec, lease)).sum();
    if left >= members.min && has_started(state, request) { Fate::Continues } else { Fate::Ends }
}

/// End reason of the other parts when one part ends for `reason`.
pub(crate) fn end_reason_of_other_parts(reason: EndReason) -> EndReason {
    match reason {
        EndReason::Released
        | EndReason::Expired
        | EndReason::Cancelled
        | EndReason::Idle
        | EndReason::OriginRevoked => reason,
        EndReason::HoldExpired
        | EndReason::DonorFailed
        | EndReason::OriginFailed
        | EndReason::OriginRefused
        | EndReason::Reclaimed
        | EndReason::Preempted
        | EndReason::NotNeeded
        | EndReason::PartFailed
        | EndReason::DeviceLost
        | EndReason::NodeLost
        | EndReason::DonorLost
        | EndReason::DonorRevoked => EndReason::PartFailed,
    }
}

/// The first lease of a request that continues without lease `id`.
pub(crate) fn first_lease_without(state: &State, request: &Request, id: LeaseId) -> Option<LeaseId> {
    if request.lease != Some(id) {
        return request.lease;
    }
    let rest = parts(state, request).filter(|(other, _)| *other != id);
    rest.filter(|(_, lease)| lease.state.is_in_force()).map(|(id, _)| id).next()
}

/// Number of members that may join a running gang. Zero while any part is under reclaim, suspect or not active yet.
pub(crate) fn joinable_members(state: &State, request: &Request) -> u32 {
    let elastic = |members: &Members| members.min < members.desired;
    let Some(members) = request.spec.members.filter(elastic) else { return 0 };
    // No check ensures that a new part shares an RDMA network with the first one.
    if request.state != RequestState::Placed || request.spec.topology.rdma_gbits > 0 {
        return 0;
    }
    let (mut held, mut count) = (0_u32, 0);
    for (_, lease) in parts(state, request) {
        if lease.state != LeaseState::Active {
            return 0;
        }
        held = held.saturating_add(members_of(&request.spec, lease));
        count += 1;
    }
    if count == 0 || count >= MAX_PARTS { 0 } else { members.desired.saturating_sub(held) }
}

/// The demand of members that may join now. `None` if none may, or if the gang ends too soon for them to be useful.
/// Excludes donors that failed this gang.
pub(crate) fn join_spec(state: &State, request: &Request) -> Option<RequestSpec> {
    let missing = joinable_members(state, request);
    if missing == 0 {
        return None;
    }
    let ends = parts(state, request).filter_map(|(_, lease)| lease.expires_at).min()?;
    if ends <= state.log_time.after(state.settings().hold) {
        return None;
    }
    let mut spec = request.spec.for_members(Members { min: 1, desired: missing }, confined_to(state, request));
    spec.deny_donors.extend(request.failed_donors.iter().cloned());
    Some(spec)
}

/// The demands that may replace `id`, a lease under reclaim; best first. If the lease is the whole request, anything
/// that serves the request may replace it. A part of a gang needs a placement for as many members. A gang confined to
/// one donor may also move as a whole, together with its first lease, to another donor; on the same donor that would
/// only add a part.
pub(crate) fn replacement_specs(state: &State, request: &Request, id: LeaseId) -> Vec<RequestSpec> {
    let Some(lease) = state.leases.get(&id).filter(|_| request.may_replace(state, id)) else { return Vec::new() };
    if request.parts.is_empty() {
        return vec![whole_replacement_spec(&request.spec)];
    }
    let (home, spread) = (confined_to(state, request), request.spec.spread_donors);
    let mut specs = Vec::new();
    if spread || home.contains(&lease.placement.donor) {
        let count = members_of(&request.spec, lease);
        specs.push(request.spec.for_members(Members { min: count, desired: count }, home.clone()));
    }
    if !spread && request.chain_of(state, id).first() == request.lease.as_ref() {
        let mut whole = request.spec.clone();
        whole.deny_donors.extend(home);
        specs.push(whole);
    }
    specs
}

/// The demand that may replace a lease that is the whole request.
pub(crate) fn whole_replacement_spec(spec: &RequestSpec) -> RequestSpec {
    RequestSpec { spread_donors: false, ..spec.clone() }
}

/// The donor that must hold all parts of a gang; empty if the gang may spread.
fn confined_to(state: &State, request: &Request) -> Vec<ClusterId> {
    if request.spec.spread_donors {
        return Vec::new();
    }
    parts(state, request).next().map(|(_, lease)| lease.placement.donor.clone()).into_iter().collect()
}

/// Whether `next`, the replacement of one part, holds the whole gang at a new donor, so that the other parts end.
pub(crate) fn moved_as_a_whole(state: &State, request: &Request, next: LeaseId) -> bool {
    let at = |id: LeaseId| state.leases.get(&id).map(|lease| &lease.placement.donor);
    !request.spec.spread_donors && request.leases().any(|id| at(id) != at(next))
}

/// Determines the purpose of a proposed placement, or refuses it.
pub(crate) fn role(state: &State, request: &Request, proposed: &ProposedPlacement) -> Result<Role, Refusal> {
    let refused = |reason: String| Refusal::new(Code::WrongState, reason, "plan again");
    let id = proposed.request;
    match (&proposed.kind, request.state) {
        (PlacementKind::Serve, RequestState::Queued) => Ok(Role::Starts),
        (PlacementKind::Serve, _) => Err(refused(format!("{id} does not wait"))),
        (PlacementKind::Replace(lease), _) if request.may_replace(state, *lease) => Ok(Role::Replaces(*lease)),
        (PlacementKind::Replace(lease), _) => Err(refused(format!("{lease} of {id} does not need to move"))),
        (PlacementKind::Join, _) if joinable_members(state, request) > 0 => Ok(Role::Joins),
        (PlacementKind::Join, _) => Err(refused(format!("no members of {id} are missing, or it does not run"))),
    }
}
