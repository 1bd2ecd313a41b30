//! An answer for people: why a request waits.

use std::collections::BTreeSet;

use super::cutting::Worths;
use super::fit::{Wanted, fit};
use super::outlook::as_asked;
use super::plan::donors;
use super::reclaim::{Repair, repair_for};
use super::reclaims::Reclaims;
use super::reserve::Reserved;
use super::spread::{gather, members_in};
use super::standing::{Standing, standing};
use super::verdict::{Candidate, DonorVerdict, Fitter, ask_donor};
use super::view::View;
use crate::demand::{Members, RequestSpec};
use crate::id::{ClusterId, RequestId};
use crate::request::RequestState;
use crate::state::State;

/// Why a request waits, and where it stands among the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Donors' answers, and all of it in one sentence.
    pub explanation: Explanation,
    /// Where it stands; `None` while no policy is in force.
    pub standing: Option<Standing>,
    /// Leases that are being reclaimed for it, or would be next.
    pub reclaims: Option<Reclaims>,
}

/// Why a request is not placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Each donor's answer, by id.
    pub donors: Vec<DonorVerdict>,
    /// One sentence.
    pub summary: String,
}

/// For each donor, the first reason against `spec` and what would unblock it.
#[must_use]
pub fn explain(state: &State, spec: &RequestSpec) -> Explanation {
    explain_beside(state, spec, None)
}

/// The same where these are being reclaimed for it.
pub(super) fn explain_beside(state: &State, spec: &RequestSpec, reclaims: Option<&Reclaims>) -> Explanation {
    let Some(mut view) = View::new(state) else {
        return Explanation {
            donors: Vec::new(),
            summary: "no policy bundle is in force, so nothing is lent".to_owned(),
        };
    };
    view.explains = true;
    let mut explanation = explain_donors(&view, spec);
    match reclaims {
        Some(reclaims) => reclaims.tell(&mut explanation),
        None => explain_repair(&view, spec, &mut explanation),
    }
    explanation
}

/// Donors' answers, and all of them in one sentence.
pub(super) fn explain_donors(view: &View<'_>, spec: &RequestSpec) -> Explanation {
    let mut worths = Worths::default();
    let mut fitter = |view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>| fit(view, donor, wanted, &mut worths);
    // Of a gang that may be spread, a donor may serve a part.
    let part = |members: Members| spec.for_members(Members { min: 1, ..members }, Vec::new());
    let asked = spec.members.filter(|_| spec.spread_donors).map_or_else(|| spec.clone(), part);
    let donors: Vec<DonorVerdict> = donors(view.state, spec)
        .map(|donor| DonorVerdict {
            donor: donor.clone(),
            obstacle: ask_donor(view, &asked, donor, &mut fitter).err().map(|obstacle| *obstacle),
        })
        .collect();
    let fits: Vec<&str> = donors.iter().filter(|d| d.obstacle.is_none()).map(|d| d.donor.as_str()).collect();
    let summary = match (fits.as_slice(), donors.as_slice()) {
        (_, []) => "no other cluster is a member of this federation yet".to_owned(),
        ([], [only]) => {
            only.obstacle.as_ref().map_or_else(String::new, |obstacle| format!("not placed: {}", obstacle.reason))
        }
        ([], all) => format!("not placed: none of {} donors can serve it now", all.len()),
        (fits, _) if !spec.spread_donors => format!("fits on {}", fits.join(", ")),
        (_, _) => explain_spread(view, spec),
    };
    Explanation { donors, summary }
}

/// Why request `id` waits; `None` if it does not.
#[must_use]
pub fn explain_waiting(state: &State, id: RequestId) -> Option<Waiting> {
    let request = state.requests.get(&id).filter(|request| request.state == RequestState::Queued)?;
    let (mut standing, reclaims) = standing(state, id).unzip();
    let reclaims = reclaims.flatten();
    let mut explanation = explain_beside(state, &request.spec, reclaims.as_ref());
    if let Some(standing) = &mut standing {
        standing.earliest = as_asked(&request.spec, &explanation, standing.earliest.take());
    }
    if request.early {
        explanation.summary = format!("its start window has not opened; {}", explanation.summary);
    }
    match standing.as_ref().and_then(|standing| standing.reserved.as_ref()) {
        Some(own) if own.request == id => {
            let donors = names(&own.donors);
            explanation.summary = format!("{}; room at {donors} is reserved for it", explanation.summary);
        }
        Some(other) if explanation.donors.iter().any(|donor| donor.obstacle.is_none()) => {
            explanation.summary.push_str(&not_before_reserved(other));
        }
        _ => {}
    }
    Some(Waiting { explanation, standing, reclaims })
}

/// Where nothing fits: whether it would if others moved aside that have another place.
fn explain_repair(view: &View<'_>, spec: &RequestSpec, explanation: &mut Explanation) {
    if explanation.donors.iter().any(|donor| donor.obstacle.is_none()) {
        return;
    }
    let Some(Repair { donor, moves, .. }) = repair_for(view, spec, &BTreeSet::new()) else { return };
    let moves: Vec<String> = moves.iter().map(|(id, _)| id.to_string()).collect();
    let moves = moves.join(" and ");
    let verdict = explanation.donors.iter_mut().find(|verdict| verdict.donor == *donor);
    let obstacle = verdict.and_then(|verdict| verdict.obstacle.as_mut());
    let after = view.state.settings().reserve_after.0 / 60_000;
    obstacle.into_iter().for_each(|obstacle| {
        let wait = format!("; or until it has waited {after} minutes: then {moves} is asked to move aside");
        obstacle.unblock.push_str(&wait);
    });
    let more = format!("; it would fit on {donor} after moving {moves}, for which there is another place");
    explanation.summary.push_str(&more);
}

/// Of a gang that may be spread and of which some donor may serve a part: whether that is enough, and where.
fn explain_spread(view: &View<'_>, spec: &RequestSpec) -> String {
    let mut worths = Worths::default();
    let mut fitter = |view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>| fit(view, donor, wanted, &mut worths);
    let whole = donors(view.state, spec).filter(|donor| ask_donor(view, spec, donor, &mut fitter).is_ok());
    let whole: Vec<&str> = whole.map(ClusterId::as_str).collect();
    if !whole.is_empty() {
        return format!("fits on {}", whole.join(", "));
    }
    let parts = gather(view, spec, None, &mut fitter);
    let held: u32 = parts.iter().map(|part| members_in(spec, part)).sum();
    let needed = spec.members.map_or(1, |members| members.min);
    let each = parts.iter().map(|part| format!("{} at {}", members_in(spec, part), part.placement.donor));
    let each = each.collect::<Vec<_>>().join(", ");
    if held >= needed {
        return format!("fits on several donors together: {each}");
    }
    let reason = why_no_more(view, spec, &parts, &mut fitter).map_or_else(String::new, |reason| format!("; {reason}"));
    format!("not placed: donors together have room for {held} of the {needed} members that must start: {each}{reason}")
}

/// Why policy lets no donor serve one more member beside `parts`.
fn why_no_more(view: &View<'_>, spec: &RequestSpec, parts: &[Candidate], fitter: Fitter<'_>) -> Option<String> {
    let mut view = view.clone();
    for Candidate { placement, class, agreement, .. } in parts {
        view.take(spec.tenant.as_str(), class, agreement.as_deref(), placement);
        view.beside_milli = view.beside_milli.saturating_add(placement.milli());
    }
    let one = spec.for_members(Members { min: 1, desired: 1 }, Vec::new());
    let mut obstacles = donors(view.state, spec).filter_map(|donor| ask_donor(&view, &one, donor, fitter).err());
    obstacles.find(|obstacle| !obstacle.by.is_empty()).map(|obstacle| obstacle.reason)
}

pub(super) fn not_before_reserved(other: &Reserved) -> String {
    format!("; it must not delay {}, which has room at {} reserved", other.request, names(&other.donors))
}

fn names(donors: &[ClusterId]) -> String {
    donors.iter().map(ClusterId::as_str).collect::<Vec<_>>().join(" and ")
}
