//! Answers for people: why a request waits, and what would happen to one.

use std::collections::BTreeSet;

use super::cutting::Worths;
use super::fit::{Wanted, fit};
use super::outlook::{as_asked, beside_reserved};
use super::plan::{Placed, Plan, Planner, donors};
use super::reclaim::{Repair, repair_for};
use super::reserve::{Reserved, held};
use super::spread::{gather, members_in};
use super::standing::{Standing, standing};
use super::verdict::{Candidate, DonorVerdict, Fitter, ask_donor};
use super::view::View;
use crate::demand::{Members, RequestSpec};
use crate::id::{ClassName, ClusterId, RequestId};
use crate::limits::MAX_PLACEMENTS_PER_COMMAND;
use crate::placement::Placement;
use crate::request::RequestState;
use crate::state::State;
use crate::time::Timestamp;

/// Why a request waits, and where it stands among the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Donors' answers, and all of it in one sentence.
    pub explanation: Explanation,
    /// Where it stands; `None` while no policy is in force.
    pub standing: Option<Standing>,
}

/// Why a request is not placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Each donor's answer, by id.
    pub donors: Vec<DonorVerdict>,
    /// One sentence.
    pub summary: String,
}

/// What would happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Where it would be placed; several of a gang that would be spread, none if it fits nowhere.
    pub placements: Vec<Placement>,
    /// Each donor's answer.
    pub explanation: Explanation,
    /// When and where it could start under the present ends of leases, after those that wait already and fit now and beside
    /// what is reserved; never before its start window opens.
    pub earliest: Option<(Timestamp, Vec<ClusterId>)>,
    /// Price of one term in thousandths of a credit.
    pub price_milli_credits: u64,
}

/// For each donor, the first reason against `spec` and what would unblock it.
#[must_use]
pub fn explain(state: &State, spec: &RequestSpec) -> Explanation {
    let Some(mut view) = View::new(state) else {
        return Explanation {
            donors: Vec::new(),
            summary: "no policy bundle is in force, so nothing is lent".to_owned(),
        };
    };
    view.explains = true;
    let mut worths = Worths::default();
    let mut fitter = |view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>| fit(view, donor, wanted, &mut worths);
    // Of a gang that may be spread, a donor may serve a part.
    let part = |members: Members| spec.for_members(Members { min: 1, ..members }, Vec::new());
    let asked = spec.members.filter(|_| spec.spread_donors).map_or_else(|| spec.clone(), part);
    let donors: Vec<DonorVerdict> = donors(state, spec)
        .map(|donor| DonorVerdict {
            donor: donor.clone(),
            obstacle: ask_donor(&view, &asked, donor, &mut fitter).err().map(|obstacle| *obstacle),
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
        (_, _) => explain_spread(&view, spec),
    };
    let mut explanation = Explanation { donors, summary };
    explain_repair(&view, spec, &mut explanation);
    explanation
}

/// Why request `id` waits; `None` if it does not.
#[must_use]
pub fn explain_waiting(state: &State, id: RequestId) -> Option<Waiting> {
    let request = state.requests.get(&id).filter(|request| request.state == RequestState::Queued)?;
    let mut explanation = explain(state, &request.spec);
    let mut standing = standing(state, id);
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
    Some(Waiting { explanation, standing })
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

fn not_before_reserved(other: &Reserved) -> String {
    format!("; it must not delay {}, which has room at {} reserved", other.request, names(&other.donors))
}

fn names(donors: &[ClusterId]) -> String {
    donors.iter().map(ClusterId::as_str).collect::<Vec<_>>().join(" and ")
}

/// Of what would fit if nobody else waited: who is served before it.
fn explain_others(plan: &Plan, explanation: &mut Explanation) {
    if explanation.donors.iter().all(|donor| donor.obstacle.is_some()) {
        return;
    }
    let more = match &plan.reserved {
        Some(other) => not_before_reserved(other),
        None if plan.placements.is_empty() => return,
        None => "; what waits already is served before it".to_owned(),
    };
    explanation.summary.push_str(&more);
}

/// Where `spec` would be placed now, after those that wait already, and for how much.
#[must_use]
pub fn quote(state: &State, spec: &RequestSpec) -> Quote {
    let mut explanation = explain(state, spec);
    let mut planner = Planner::default();
    let Some(mut run) = planner.begin(state) else {
        return Quote { placements: Vec::new(), explanation, earliest: None, price_milli_credits: 0 };
    };
    let mut plan = Plan::default();
    run.serve(&mut plan, MAX_PLACEMENTS_PER_COMMAND);
    let Some(found) = run.find(spec, None) else {
        let mut ends = held(state);
        ends.extend(run.placed.iter().map(Placed::held));
        let earliest = beside_reserved(&run, &plan, &run.view, ends, spec);
        let earliest = as_asked(spec, &explanation, earliest);
        explain_others(&plan, &mut explanation);
        return Quote { placements: Vec::new(), explanation, earliest, price_milli_credits: 0 };
    };
    let donors = found.iter().map(|part| part.placement.donor.clone()).collect();
    let rate = |class: &ClassName| {
        let class = state.policy.as_ref().and_then(|record| record.bundle.classes.get(class.as_str()));
        class.map_or(0, |class| class.spec.price_credits_milli_per_gpu_hour)
    };
    let prices = found.iter().map(|part| price(rate(&part.class), part.placement.milli(), spec.duration.0));
    let price_milli_credits = prices.fold(0, u64::saturating_add);
    let placements = found.into_iter().map(|part| part.placement).collect();
    let earliest = as_asked(spec, &explanation, Some((state.log_time, donors)));
    Quote { placements, explanation, earliest, price_milli_credits }
}

/// Rate in thousandths of a credit per GPU-hour × thousandths of a GPU × milliseconds, rounded up; saturates.
fn price(rate: u64, milli: u64, duration_ms: u64) -> u64 {
    const MILLI_GPU_HOUR: u128 = 1_000 * 3_600 * 1_000;
    let product = u128::from(rate) * u128::from(milli);
    u64::try_from(product.saturating_mul(u128::from(duration_ms)).div_ceil(MILLI_GPU_HOUR)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::price;

    #[test]
    fn prices_are_per_gpu_hour_and_round_up() {
        assert_eq!(price(2_500, 3_000, 2 * 3_600_000), 15_000);
        assert_eq!(price(1, 50, 1_000), 1);
        assert_eq!(price(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
    }
}
