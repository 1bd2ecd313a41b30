//! Explains why a request waits.

use std::collections::BTreeSet;

use comity_policy::show_duration;
use comity_types::{ClusterId, RequestId, RequestState};

use crate::explain::answer::Explanation;
use crate::explain::outlook::adjusted_outlook;
use crate::explain::queue_position::{QueuePosition, queue_position};
use crate::explain::reclaims::Reclaims;
use crate::explain::rule_warnings::warnings_at;
use crate::feasibility::donors::promise::donors;
use crate::feasibility::donors::spread::{gather, members_in};
use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Wanted, fit};
use crate::feasibility::idle::lasting_obstacle;
use crate::feasibility::obstacle::Cure;
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::{DonorVerdict, FeasiblePlacement, Fitter, ask_donor};
use crate::model::demand::{Members, RequestSpec};
use crate::scheduler::find_migration::{Migration, migration_for};
use crate::scheduler::preempt::limited_room;
use crate::scheduler::reserve::Reserved;
use crate::state::State;

/// For each donor, the first reason against `spec` and what would unblock it.
#[must_use]
pub fn explain(state: &State, spec: &RequestSpec) -> Explanation {
    explain_beside(state, spec, None)
}

/// Like [`explain`], where `reclaims` make room for the request.
pub(crate) fn explain_beside(state: &State, spec: &RequestSpec, reclaims: Option<&Reclaims>) -> Explanation {
    let Some(mut snapshot) = Snapshot::new(state) else {
        return Explanation {
            donors: Vec::new(),
            summary: "no policy bundle is in force, so nothing is lent".to_owned(),
        };
    };
    snapshot.explains = true;
    let mut explanation = explain_donors(&snapshot, spec);
    match reclaims {
        Some(reclaims) => reclaims.add_to(&mut explanation),
        None => {
            explain_migration(&snapshot, spec, &mut explanation);
            explain_limit(&snapshot, spec, &mut explanation);
        }
    }
    explanation
}

/// Asks every donor, and summarizes the answers.
pub(crate) fn explain_donors(snapshot: &Snapshot<'_>, spec: &RequestSpec) -> Explanation {
    let mut mig_values = MigValues::default();
    let mut fitter =
        |snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>| fit(snapshot, donor, wanted, &mut mig_values);
    let asked = for_one_donor(spec);
    let mut first_obstacle = |donor: &ClusterId| {
        let now = *ask_donor(snapshot, &asked, donor, &mut fitter).err()?;
        // Nobody should wait in vain.
        let lasting = if now.cure == Cure::Waiting { lasting_obstacle(snapshot, &asked, donor) } else { None };
        Some(lasting.unwrap_or(now))
    };
    let donors: Vec<DonorVerdict> = donors(snapshot.state, spec)
        .map(|donor| DonorVerdict {
            donor: donor.clone(),
            obstacle: first_obstacle(donor),
            warnings: warnings_at(snapshot, &asked, donor),
        })
        .collect();
    let fits: Vec<&str> = donors.iter().filter(|d| d.obstacle.is_none()).map(|d| d.donor.as_str()).collect();
    let summary = match (fits.as_slice(), donors.as_slice()) {
        (_, []) => "no other cluster is a member of this federation yet".to_owned(),
        ([], [only]) => {
            only.obstacle.as_ref().map_or_else(String::new, |obstacle| format!("not placed: {}", obstacle.reason))
        }
        ([], all) if all.iter().all(DonorVerdict::lasts) => {
            format!("not placed: none of {} donors could ever serve it", all.len())
        }
        ([], all) => format!("not placed: none of {} donors can serve it now", all.len()),
        (fits, _) if !spec.spread_donors => format!("fits on {}", fits.join(", ")),
        (_, _) => explain_spread(snapshot, spec),
    };
    Explanation { donors, summary }
}

/// The part of a request that one donor must serve: one member of a gang that may be spread, or all.
pub(crate) fn for_one_donor(spec: &RequestSpec) -> RequestSpec {
    let part = |members: Members| spec.for_members(Members { min: 1, ..members }, Vec::new());
    spec.members.filter(|_| spec.spread_donors).map_or_else(|| spec.clone(), part)
}

/// Explains why request `id` waits; `None` if it does not.
#[must_use]
pub fn explain_waiting(state: &State, id: RequestId) -> Option<Waiting> {
    let request = state.requests.get(&id).filter(|request| request.state == RequestState::Queued)?;
    let (mut position, reclaims) = queue_position(state, id).unzip();
    let reclaims = reclaims.flatten();
    let mut explanation = explain_beside(state, &request.spec, reclaims.as_ref());
    if let Some(position) = &mut position {
        position.earliest = adjusted_outlook(&request.spec, &explanation, position.earliest.take());
    }
    let summary = std::mem::take(&mut explanation.summary);
    explanation.summary = match request.retry_at {
        Some(at) => format!("it is tried again in {}; {summary}", show_duration(at.since(state.log_time).0)),
        None if request.early => format!("its start window has not opened; {summary}"),
        None => summary,
    };
    match position.as_ref().and_then(|position| position.reserved.as_ref()) {
        Some(reserved) if reserved.request == id => {
            let donors = names(&reserved.donors);
            explanation.summary = format!("{}; room at {donors} is reserved for it", explanation.summary);
        }
        Some(other) if explanation.donors.iter().any(|donor| donor.obstacle.is_none()) => {
            explanation.summary.push_str(&not_before_reserved(other));
        }
        _ => {}
    }
    Some(Waiting { explanation, position, reclaims })
}

/// If the request fits nowhere, tells whether it would after moving leases that have another place.
fn explain_migration(snapshot: &Snapshot<'_>, spec: &RequestSpec, explanation: &mut Explanation) {
    if explanation.donors.iter().any(|donor| donor.obstacle.is_none()) {
        return;
    }
    let Some(Migration { donor, moves, .. }) = migration_for(snapshot, spec, &BTreeSet::new()) else { return };
    let moves: Vec<String> = moves.iter().map(|(id, _)| id.to_string()).collect();
    let moves = moves.join(" and ");
    let verdict = explanation.donors.iter_mut().find(|verdict| verdict.donor == *donor);
    let obstacle = verdict.and_then(|verdict| verdict.obstacle.as_mut());
    let after = snapshot.state.settings().reserve_after.0 / 60_000;
    obstacle.into_iter().for_each(|obstacle| {
        let wait = format!("; or until it has waited {after} minutes: then {moves} is asked to move aside");
        obstacle.unblock.push_str(&wait);
    });
    let more = format!("; it would fit on {donor} after moving {moves}, for which there is another place");
    explanation.summary.push_str(&more);
}

/// If the request fits nowhere, tells whether only a limit on reclaims keeps leases from yielding to it.
fn explain_limit(snapshot: &Snapshot<'_>, spec: &RequestSpec, explanation: &mut Explanation) {
    if explanation.donors.iter().any(|donor| donor.obstacle.is_none()) {
        return;
    }
    let Some((donor, reached)) = limited_room(snapshot, spec) else { return };
    let limit = reached.text();
    let verdict = explanation.donors.iter_mut().find(|verdict| verdict.donor == *donor);
    if let Some(obstacle) = verdict.and_then(|verdict| verdict.obstacle.as_mut()) {
        obstacle.unblock.push_str(&format!("; leases would yield to it, {limit}"));
    }
    explanation.summary.push_str(&format!("; leases of {donor} would yield to it, {limit}"));
}

/// For a gang whose parts several donors may serve: tells whether these suffice, and where.
fn explain_spread(snapshot: &Snapshot<'_>, spec: &RequestSpec) -> String {
    let mut mig_values = MigValues::default();
    let mut fitter =
        |snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>| fit(snapshot, donor, wanted, &mut mig_values);
    let whole = donors(snapshot.state, spec).filter(|donor| ask_donor(snapshot, spec, donor, &mut fitter).is_ok());
    let whole: Vec<&str> = whole.map(ClusterId::as_str).collect();
    if !whole.is_empty() {
        return format!("fits on {}", whole.join(", "));
    }
    let parts = gather(snapshot, spec, None, &mut fitter);
    let held: u32 = parts.iter().map(|part| members_in(spec, part)).sum();
    let needed = spec.members.map_or(1, |members| members.min);
    let each = parts.iter().map(|part| format!("{} at {}", members_in(spec, part), part.placement.donor));
    let each = each.collect::<Vec<_>>().join(", ");
    if held >= needed {
        return format!("fits on several donors together: {each}");
    }
    let reason =
        why_no_more(snapshot, spec, &parts, &mut fitter).map_or_else(String::new, |reason| format!("; {reason}"));
    format!("not placed: donors together have room for {held} of the {needed} members that must start: {each}{reason}")
}

/// The policy reason that keeps every donor from serving one more member alongside `parts`.
fn why_no_more(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    parts: &[FeasiblePlacement],
    fitter: Fitter<'_>,
) -> Option<String> {
    let mut snapshot = snapshot.clone();
    for FeasiblePlacement { placement, class, agreement, .. } in parts {
        snapshot.take(spec, class, agreement.as_deref(), placement);
        snapshot.beside_milli = snapshot.beside_milli.saturating_add(placement.milli());
    }
    let one = spec.for_members(Members { min: 1, desired: 1 }, Vec::new());
    let mut obstacles =
        donors(snapshot.state, spec).filter_map(|donor| ask_donor(&snapshot, &one, donor, fitter).err());
    obstacles.find(|obstacle| !obstacle.by.is_empty()).map(|obstacle| obstacle.reason)
}

pub(crate) fn not_before_reserved(other: &Reserved) -> String {
    format!("; it must not delay {}, which has room at {} reserved", other.request, names(&other.donors))
}

fn names(donors: &[ClusterId]) -> String {
    donors.iter().map(ClusterId::as_str).collect::<Vec<_>>().join(" and ")
}

/// Why a request waits, and its position in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Each donor's answer, and a summary.
    pub explanation: Explanation,
    /// Its queue position; `None` while no policy is in force.
    pub position: Option<QueuePosition>,
    /// The leases being reclaimed for it, or to be reclaimed next.
    pub reclaims: Option<Reclaims>,
}
