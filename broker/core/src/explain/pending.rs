//! Explains pending searches for a request that runs already: another place for a reclaimed lease, or members missing
//! since its start.

use comity_types::{LeaseId, RequestId};

use crate::explain::answer::Explanation;
use crate::explain::explanation::explain_donors;
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::RequestSpec;
use crate::model::request::Request;
use crate::state::State;
use crate::state::gang::{Role, held_milli, join_spec, joinable_members, replacement_specs};
use crate::state::gpu_time::kept_end;

/// Explains the pending search for a request; `None` if there is none, or while no policy is in force.
#[must_use]
pub fn explain_pending(state: &State, id: RequestId) -> Option<Explanation> {
    let request = state.requests.get(&id)?;
    let mut snapshot = Snapshot::new(state)?;
    snapshot.explains = true;
    another_place(&snapshot, request).or_else(|| more_members(&snapshot, request))
}

/// Another place for the reclaimed lease that ends first among those without one.
fn another_place(snapshot: &Snapshot<'_>, request: &Request) -> Option<Explanation> {
    let state = snapshot.state;
    let last = request.chains(state).filter_map(|chain| chain.last().copied());
    let sought = last.filter(|id| request.may_replace(state, *id));
    let due = |id: LeaseId| state.leases.get(&id).and_then(|lease| Some((lease.due()?, id)));
    let (until, id) = sought.filter_map(due).min()?;
    // As in planning, a replaced lease and its replacement count once against limits.
    let mut snapshot = snapshot.clone();
    snapshot.exclude_chain(&request.chain_of(state, id));
    snapshot.kept_end = kept_end(state, request, Role::Replaces(id));
    let spec = replacement_specs(state, request, id).into_iter().next()?;
    let found = explain_donors(&snapshot, &spec);
    let summary = format!("another place is sought for {id} until {}: {}", until.to_minute(), found.summary);
    Some(Explanation { summary, ..found })
}

/// Places for the missing members of a running gang.
fn more_members(snapshot: &Snapshot<'_>, request: &Request) -> Option<Explanation> {
    let state = snapshot.state;
    let spec = RequestSpec { spread_donors: false, ..join_spec(state, request)? };
    let mut snapshot = snapshot.clone();
    snapshot.beside_milli = held_milli(state, request);
    snapshot.kept_end = kept_end(state, request, Role::Joins);
    let found = explain_donors(&snapshot, &spec);
    let missing = joinable_members(state, request);
    let summary = format!("{missing} more of its members would join: {}", found.summary);
    Some(Explanation { summary, ..found })
}
