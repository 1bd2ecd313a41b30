//! Quotes: what would happen to a request submitted now. The request takes its turn among the waiting requests in the
//! same plan that the leader makes.

use std::collections::BTreeSet;

use comity_types::{ClassName, ClusterId, RequestId, RequestState};

use crate::explain::answer::Explanation;
use crate::explain::explanation::{explain_beside, not_before_reserved};
use crate::explain::outlook::{adjusted_outlook, outlook_beside_reservations};
use crate::explain::reclaims::Reclaims;
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::demand::RequestSpec;
use crate::model::inventory::{Enforcement, Node};
use crate::model::limits::{MAX_PLACEMENTS_PER_PLAN, WHOLE_MILLI};
use crate::model::placement::{NodePlacement, Placement};
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::order::Hypothetical;
use crate::scheduler::plan::Plan;
use crate::scheduler::plan_state::placed::Placed;
use crate::scheduler::planner::Planner;
use crate::scheduler::planning::Planning;
use crate::state::State;

/// The expected outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quote {
    /// Where it would be placed now, in its turn: several placements for a spread gang, none if it fits nowhere.
    pub placements: Vec<Placement>,
    /// Each donor's answer.
    pub explanation: Explanation,
    /// When and where it could start as leases end and are reclaimed, after the waiting requests that are placed now
    /// and alongside reservations for others; never before its start window opens.
    pub earliest: Option<(Timestamp, Vec<ClusterId>)>,
    /// Leases to reclaim for it at once; it would start when these have ended.
    pub reclaims: Option<Reclaims>,
    /// Price of one term in thousandths of a credit.
    pub price_milli_credits: u64,
    /// Parts of the placements that donors enforce on every node.
    pub enforces: Enforcement,
}

impl Quote {
    /// The quote of a request that is not placed now.
    fn unplaced(explanation: Explanation) -> Self {
        let (placements, enforces) = (Vec::new(), Enforcement::default());
        Self { placements, explanation, earliest: None, reclaims: None, price_milli_credits: 0, enforces }
    }
}

/// Quotes `spec`, which must be as a submission makes it.
#[must_use]
pub fn quote(state: &State, spec: &RequestSpec) -> Quote {
    let request = submitted(state, spec);
    let hypothetical = Hypothetical { id: RequestId(state.next_request.saturating_add(1)), request: &request };
    let mut planner = Planner::with_hypothetical(&request);
    let Some(mut planning) = planner.begin(state) else {
        return Quote::unplaced(explain_beside(state, spec, None));
    };
    planning.hypothetical = request.waits().then_some(&hypothetical);
    let mut plan = Plan::default();
    planning.serve(&mut plan, MAX_PLACEMENTS_PER_PLAN);
    // Before its start window it has no turn, and a full plan may not have reached it.
    let is_placed = planning.plan_state.placed().iter().any(|placed| placed.serves(&request));
    let later =
        if is_placed || plan.unplaced.contains(&hypothetical.id) { None } else { planning.plan_state.find(spec, None) };
    let placed = planning.plan_state.placed().iter().filter(|placed| placed.serves(&request));
    let placed = placed.flat_map(|placed| &placed.parts);
    let found: Vec<&FeasiblePlacement> = placed.chain(later.iter().flatten()).collect();
    if found.is_empty() {
        return quote_waiting(&planning, &plan, &hypothetical);
    }
    let explanation = explain_beside(state, spec, None);
    let donors = found.iter().map(|part| part.placement.donor.clone()).collect();
    let earliest = adjusted_outlook(spec, &explanation, Some((state.log_time, donors)));
    Quote {
        placements: found.iter().map(|part| part.placement.clone()).collect(),
        explanation,
        earliest,
        reclaims: None,
        price_milli_credits: price_of(state, spec, &found),
        enforces: enforced(state, found.iter().map(|part| &part.placement)),
    }
}

/// Parts of the placements that donors enforce on every node.
fn enforced<'p>(state: &State, placements: impl Iterator<Item = &'p Placement>) -> Enforcement {
    let mut all = Enforcement::ALL;
    for placement in placements {
        let offer = state.clusters.get(&placement.donor).and_then(|cluster| cluster.offer.as_ref());
        for (id, part) in &placement.nodes {
            let node = offer.and_then(|offer| offer.nodes.get(id));
            let here = node.map(|node| node.enforces).unwrap_or_default();
            all.devices &= here.devices || node.is_some_and(|node| takes_all(node, part, &placement.resource_name));
            all.numa &= here.numa;
        }
    }
    all
}

/// Whether `part` takes all devices of the resource whole, which leaves no choice.
fn takes_all(node: &Node, part: &NodePlacement, resource: &str) -> bool {
    let mut devices = (0..).zip(&node.devices).filter(|(_, device)| device.resource_name == resource);
    devices.all(|(index, _)| part.devices.get(&index).is_some_and(|share| share.milli == WHOLE_MILLI))
}

/// The request that a submission of `spec` would create.
fn submitted(state: &State, spec: &RequestSpec) -> Request {
    let origin = state.clusters.get(&spec.origin);
    let refused = origin.into_iter().flat_map(|origin| origin.refused_lately(state.log_time));
    Request {
        spec: spec.clone(),
        state: RequestState::Queued,
        lease: None,
        parts: BTreeSet::new(),
        submitted_at: state.log_time,
        traceparent: String::new(),
        attempts: 0,
        reclaims: 0,
        failed_donors: refused.cloned().collect(),
        early: spec.not_before.is_some_and(|opens| opens > state.log_time),
        retry_at: None,
        room_at: None,
        message: String::new(),
        revision: 0,
    }
}

/// The quote of a request that would wait.
fn quote_waiting<'a>(planning: &'a Planning<'a, 'a>, plan: &Plan, hypothetical: &Hypothetical<'_>) -> Quote {
    let (state, request) = (planning.state(), hypothetical.request);
    let reclaims = Reclaims::planned(state, plan, hypothetical.id);
    let mut explanation = explain_beside(state, &request.spec, reclaims.as_ref());
    let snapshot = planning.plan_state.snapshot();
    let placed = planning.plan_state.placed().iter().flat_map(Placed::held).collect();
    let earliest = outlook_beside_reservations(planning, plan, snapshot, placed, request, reclaims.as_ref());
    let earliest = adjusted_outlook(&request.spec, &explanation, earliest);
    if reclaims.is_none() {
        explain_others(plan, &mut explanation);
    }
    Quote { earliest, reclaims, ..Quote::unplaced(explanation) }
}

/// For a request that would fit if nobody else waited: tells who is served before it.
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

/// The price of one term of all parts.
fn price_of(state: &State, spec: &RequestSpec, found: &[&FeasiblePlacement]) -> u64 {
    let rate = |class: &ClassName| {
        let class = state.policy.as_ref().and_then(|record| record.bundle.classes.get(class.as_str()));
        class.map_or(0, |class| class.spec.price_credits_milli_per_gpu_hour)
    };
    let prices = found.iter().map(|part| price(rate(&part.class), part.placement.milli(), spec.duration.0));
    prices.fold(0, u64::saturating_add)
}

/// Multiplies a rate in thousandths of a credit per GPU-hour by thousandths of a GPU and milliseconds. Rounds up;
/// saturates.
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
