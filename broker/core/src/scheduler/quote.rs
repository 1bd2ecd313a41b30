//! An answer for people: what would happen to a request, were it submitted now. It is looked at as if it waited, in its
//! turn among those that do, by the same plan that the leader makes.

use std::collections::BTreeSet;

use super::explain::{Explanation, explain_beside, not_before_reserved};
use super::order::AsIf;
use super::outlook::{as_asked, beside_kept};
use super::plan::{Placed, Plan, Planner, Run};
use super::reclaims::Reclaims;
use super::verdict::Candidate;
use crate::demand::RequestSpec;
use crate::id::{ClassName, ClusterId, RequestId};
use crate::limits::MAX_PLACEMENTS_PER_PLAN;
use crate::placement::Placement;
use crate::request::{Request, RequestState};
use crate::state::State;
use crate::time::Timestamp;

/// What would happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Where it would be placed now, in its turn; several of a gang that would be spread, none if it fits nowhere.
    pub placements: Vec<Placement>,
    /// Each donor's answer.
    pub explanation: Explanation,
    /// When and where it could start under the present ends of leases and those of leases that are being reclaimed,
    /// after those that wait and are placed now and beside what is kept for others; never before its start window
    /// opens.
    pub earliest: Option<(Timestamp, Vec<ClusterId>)>,
    /// Leases that would be reclaimed for it at once; then it starts when these have ended.
    pub reclaims: Option<Reclaims>,
    /// Price of one term in thousandths of a credit.
    pub price_milli_credits: u64,
}

/// What would happen to `spec`, which is as a submission makes it.
#[must_use]
pub fn quote(state: &State, spec: &RequestSpec) -> Quote {
    let request = submitted(state, spec);
    let as_if = AsIf { id: RequestId(state.next_request.saturating_add(1)), request: &request };
    let mut planner = Planner::beside(&request);
    let Some(mut run) = planner.begin(state) else {
        let explanation = explain_beside(state, spec, None);
        return Quote { placements: Vec::new(), explanation, earliest: None, reclaims: None, price_milli_credits: 0 };
    };
    run.as_if = request.waits().then_some(&as_if);
    let mut plan = Plan::default();
    run.serve(&mut plan, MAX_PLACEMENTS_PER_PLAN);
    // Before its window opens it has no turn, and a plan that is full may not have come to it.
    let later = if plan.unplaced.contains(&as_if.id) || run.placed.iter().any(|placed| placed.is_of(&request)) {
        None
    } else {
        run.find(spec, None)
    };
    let placed = run.placed.iter().filter(|placed| placed.is_of(&request)).map(|placed| &placed.candidate);
    let found: Vec<&Candidate> = placed.chain(later.iter().flatten()).collect();
    if found.is_empty() {
        return waits(&run, &plan, &as_if);
    }
    let explanation = explain_beside(state, spec, None);
    let donors = found.iter().map(|part| part.placement.donor.clone()).collect();
    let earliest = as_asked(spec, &explanation, Some((state.log_time, donors)));
    Quote {
        placements: found.iter().map(|part| part.placement.clone()).collect(),
        explanation,
        earliest,
        reclaims: None,
        price_milli_credits: price_of(state, spec, &found),
    }
}

/// A request as its submission would make it.
fn submitted(state: &State, spec: &RequestSpec) -> Request {
    Request {
        spec: spec.clone(),
        state: RequestState::Queued,
        lease: None,
        parts: BTreeSet::new(),
        submitted_at: state.log_time,
        submitted_by: String::new(),
        traceparent: String::new(),
        attempts: 0,
        failed_donors: BTreeSet::new(),
        early: spec.not_before.is_some_and(|opens| opens > state.log_time),
        room_at: None,
        message: String::new(),
        revision: 0,
    }
}

/// Of one that would wait.
fn waits<'a>(run: &'a Run<'a, 'a>, plan: &Plan, as_if: &AsIf<'_>) -> Quote {
    let (state, request) = (run.view.state, as_if.request);
    let reclaims = Reclaims::planned(state, plan, as_if.id);
    let mut explanation = explain_beside(state, &request.spec, reclaims.as_ref());
    let placed = run.placed.iter().map(Placed::held).collect();
    let earliest = beside_kept(run, plan, &run.view, placed, (request, reclaims.is_some()));
    let earliest = as_asked(&request.spec, &explanation, earliest);
    if reclaims.is_none() {
        explain_others(plan, &mut explanation);
    }
    Quote { placements: Vec::new(), explanation, earliest, reclaims, price_milli_credits: 0 }
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

/// What one term costs at all these.
fn price_of(state: &State, spec: &RequestSpec, found: &[&Candidate]) -> u64 {
    let rate = |class: &ClassName| {
        let class = state.policy.as_ref().and_then(|record| record.bundle.classes.get(class.as_str()));
        class.map_or(0, |class| class.spec.price_credits_milli_per_gpu_hour)
    };
    let prices = found.iter().map(|part| price(rate(&part.class), part.placement.milli(), spec.duration.0));
    prices.fold(0, u64::saturating_add)
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
