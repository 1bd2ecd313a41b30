//! Gangs of several leases: the one place where their parts are tied together.
//!
//! A gang has one lease at each donor that it lies on, and one more for each time that members came later. Its parts
//! stand or fall together until it runs: they are placed in one step, and if one fails before all are active, all end
//! and the request waits again, as old as it was. From then on they are renewed and released together; a part that its
//! donor takes away ends the gang only if fewer than its least number of members are left.
//!
//! Members that come later are a further lease, not a change of the first: to agents a lease is one placement under one
//! id and fencing token from beginning to end, and if it fails, what runs already is not concerned.
//!
//! Each part is being reclaimed and replaced by itself, and what is to replace it in turn ([`Request::chains`]); so is
//! one whose device, node or donor fails while something can still be saved. A part that is gone at once is one that
//! its donor takes away without notice: the gang goes on without it, and members join in its stead, or it ends if they
//! are too few.

use crate::model::demand::{Members, RequestSpec};
use crate::model::id::{ClusterId, LeaseId};
use crate::model::lease::{EndReason, Lease, LeaseState};
use crate::model::limits::MAX_PARTS;
use crate::model::proposal::{Aim, ProposedPlacement};
use crate::model::refusal::{Code, Refusal};
use crate::model::request::{Request, RequestState};
use crate::state::State;

/// What a placement is to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// What the request starts with.
    Starts,
    /// A new place for a lease that is being reclaimed.
    Replaces(LeaseId),
    /// Members that come later.
    Joins,
}

/// What becomes of a request when one of its leases ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on without.
    GoesOn,
    /// It ends with it, as the reason says, and so do its other leases.
    Ends,
}

/// Leases of a request that exist, the first one first.
pub(crate) fn parts<'s>(state: &'s State, request: &'s Request) -> impl Iterator<Item = (LeaseId, &'s Lease)> {
    request.leases().filter_map(|id| Some((id, state.leases.get(&id)?)))
}

/// How many members a lease holds.
pub(crate) fn members_of(spec: &RequestSpec, lease: &Lease) -> u32 {
    lease.gpus.count / spec.gpus.count.max(1)
}

/// Thousandths of devices that all its leases hold.
pub(crate) fn held_milli(state: &State, request: &Request) -> u64 {
    parts(state, request).fold(0, |all, (_, lease)| lease.placement.milli().saturating_add(all))
}

/// Whether all parts that it started with have been active, so that it can work.
pub(crate) fn runs(state: &State, request: &Request) -> bool {
    parts(state, request).all(|(_, lease)| came_later(lease) || !lease.state.is_held())
}

/// Whether a lease came to a gang that ran already: with more members, or in the place of another one.
fn came_later(lease: &Lease) -> bool {
    lease.joins || lease.moved_from.is_some()
}

/// What becomes of the request of `id`, which ends and was in state `was`.
pub(crate) fn fate(state: &State, request: &Request, (id, lease): (LeaseId, &Lease), was: LeaseState) -> Fate {
    let reason = lease.end_reason.unwrap_or(EndReason::Released);
    let failed = reason.retries() || reason == EndReason::OriginFailed;
    if lease.joins && was.is_held() && failed {
        return Fate::GoesOn;
    }
    let Some(members) = request.spec.members.filter(|_| reason.retries() && (came_later(lease) || !was.is_held()))
    else {
        return Fate::Ends;
    };
    let rest = parts(state, request).filter(|(other, _)| *other != id);
    let works = rest.filter(|(_, lease)| lease.state.is_in_force());
    let left: u32 = works.map(|(_, lease)| members_of(&request.spec, lease)).sum();
    if left >= members.min && runs(state, request) { Fate::GoesOn } else { Fate::Ends }
}

/// Why the other parts of a gang end when one does for `reason`.
pub(crate) fn reason_of_others(reason: EndReason) -> EndReason {
    match reason {
        EndReason::Released | EndReason::Expired | EndReason::Cancelled => reason,
        EndReason::HoldExpired
        | EndReason::DonorFailed
        | EndReason::OriginFailed
        | EndReason::Reclaimed
        | EndReason::Preempted
        | EndReason::NotNeeded
        | EndReason::PartFailed
        | EndReason::DeviceLost
        | EndReason::NodeLost
        | EndReason::DonorLost => EndReason::PartFailed,
    }
}

/// Takes a lease out of its request, which goes on without.
pub(crate) fn leave(state: &State, request: &Request, id: LeaseId) -> Option<LeaseId> {
    if request.lease != Some(id) {
        return request.lease;
    }
    let rest = parts(state, request).filter(|(other, _)| *other != id);
    rest.filter(|(_, lease)| lease.state.is_in_force()).map(|(id, _)| id).next()
}

/// How many members may join a gang that runs; zero while a part of it is being reclaimed, silent or not active yet.
pub(crate) fn missing(state: &State, request: &Request) -> u32 {
    let elastic = |members: &Members| members.min < members.desired;
    let Some(members) = request.spec.members.filter(elastic) else { return 0 };
    // Which network the nodes of the first lease share with those of another one, nobody checks.
    if request.state != RequestState::Matched || request.spec.topology.rdma_gbits > 0 {
        return 0;
    }
    let (mut held, mut many) = (0_u32, 0);
    for (_, lease) in parts(state, request) {
        if lease.state != LeaseState::Active {
            return 0;
        }
        held = held.saturating_add(members_of(&request.spec, lease));
        many += 1;
    }
    if many == 0 || many >= MAX_PARTS { 0 } else { members.desired.saturating_sub(held) }
}

/// What members that join now may be: so many at most, at these donors; `None` if nothing may join, or it would not be
/// worth its while before the gang ends. A donor that failed the gang is not asked for more.
pub(crate) fn joining(state: &State, request: &Request) -> Option<RequestSpec> {
    let missing = missing(state, request);
    if missing == 0 {
        return None;
    }
    let ends = parts(state, request).filter_map(|(_, lease)| lease.expires_at).min()?;
    if ends <= state.log_time.after(state.settings().hold) {
        return None;
    }
    let mut spec = request.spec.for_members(Members { min: 1, desired: missing }, home(state, request));
    spec.deny_donors.extend(request.failed_donors.iter().cloned());
    Some(spec)
}

/// What may replace `id`, which is being reclaimed: the best first. A lease that is all of its request may be replaced
/// by whatever would serve the request; a part of a gang, by as many members. A gang that must lie on one donor may
/// also move as a whole, with its first lease and never to where it is: there that would be one part more of it.
pub(crate) fn replacing(state: &State, request: &Request, id: LeaseId) -> Vec<RequestSpec> {
    let Some(lease) = state.leases.get(&id).filter(|_| request.may_replace(state, id)) else { return Vec::new() };
    if request.parts.is_empty() {
        return vec![elsewhere(&request.spec)];
    }
    let (home, spread) = (home(state, request), request.spec.spread_donors);
    let mut specs = Vec::new();
    if spread || home.contains(&lease.placement.donor) {
        let many = members_of(&request.spec, lease);
        specs.push(request.spec.for_members(Members { min: many, desired: many }, home.clone()));
    }
    if !spread && request.chain_of(state, id).first() == request.lease.as_ref() {
        let mut whole = request.spec.clone();
        whole.deny_donors.extend(home);
        specs.push(whole);
    }
    specs
}

/// What may replace a lease that is all of its request.
pub(crate) fn elsewhere(spec: &RequestSpec) -> RequestSpec {
    RequestSpec { spread_donors: false, ..spec.clone() }
}

/// The donor that all parts of a gang must be at; empty if it may be spread.
fn home(state: &State, request: &Request) -> Vec<ClusterId> {
    if request.spec.spread_donors {
        return Vec::new();
    }
    parts(state, request).next().map(|(_, lease)| lease.placement.donor.clone()).into_iter().collect()
}

/// Whether the rest of a gang ends because `next` took the place of one of its leases: it has moved as a whole.
pub(crate) fn moves_whole(state: &State, request: &Request, next: LeaseId) -> bool {
    let at = |id: LeaseId| state.leases.get(&id).map(|lease| &lease.placement.donor);
    !request.spec.spread_donors && request.leases().any(|id| at(id) != at(next))
}

/// What a proposed placement is to its request.
pub(crate) fn role(state: &State, request: &Request, proposed: &ProposedPlacement) -> Result<Role, Refusal> {
    let refused = |reason: String| Refusal::new(Code::WrongState, reason, "plan again");
    let id = proposed.request;
    match (&proposed.aim, request.state) {
        (Aim::Serve, RequestState::Queued) => Ok(Role::Starts),
        // Before format 5 nothing else could be meant.
        (Aim::Serve, _) => {
            let replaced = request.leases().find(|lease| request.may_replace(state, *lease));
            replaced.map(Role::Replaces).ok_or_else(|| refused(format!("{id} neither waits nor has to move")))
        }
        (Aim::Replace(lease), _) if request.may_replace(state, *lease) => Ok(Role::Replaces(*lease)),
        (Aim::Replace(lease), _) => Err(refused(format!("{lease} of {id} has not to move"))),
        (Aim::Join, _) if missing(state, request) > 0 => Ok(Role::Joins),
        (Aim::Join, _) => Err(refused(format!("no members of {id} are missing, or it does not run"))),
    }
}
