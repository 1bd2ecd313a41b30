//! Answers for people: why a request waits, and what would happen to one.

use super::cutting::Worths;
use super::fit::{Wanted, fit};
use super::plan::{Plan, Planner, donors};
use super::standing::{Standing, standing};
use super::verdict::{DonorVerdict, ask_donor};
use super::view::View;
use crate::demand::RequestSpec;
use crate::id::{ClusterId, RequestId};
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
    /// Where it would be placed.
    pub placement: Option<Placement>,
    /// Each donor's answer.
    pub explanation: Explanation,
    /// When and where it could start under the present ends of leases, after those that wait already and fit now.
    pub earliest: Option<(Timestamp, ClusterId)>,
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
    let donors: Vec<DonorVerdict> = donors(state, spec)
        .map(|donor| DonorVerdict {
            donor: donor.clone(),
            obstacle: ask_donor(&view, spec, donor, &mut fitter).err().map(|obstacle| *obstacle),
        })
        .collect();
    let fits: Vec<&str> = donors.iter().filter(|d| d.obstacle.is_none()).map(|d| d.donor.as_str()).collect();
    let summary = match (fits.as_slice(), donors.as_slice()) {
        (_, []) => "no other cluster is a member of this federation yet".to_owned(),
        ([], [only]) => {
            only.obstacle.as_ref().map_or_else(String::new, |obstacle| format!("not placed: {}", obstacle.reason))
        }
        ([], all) => format!("not placed: none of {} donors can serve it now", all.len()),
        (fits, _) => format!("fits on {}", fits.join(", ")),
    };
    Explanation { donors, summary }
}

/// Why request `id` waits; `None` if it does not.
#[must_use]
pub fn explain_waiting(state: &State, id: RequestId) -> Option<Waiting> {
    let request = state.requests.get(&id).filter(|request| request.state == RequestState::Queued)?;
    let mut explanation = explain(state, &request.spec);
    let standing = standing(state, id);
    if request.early {
        explanation.summary = format!("its start window has not opened; {}", explanation.summary);
    }
    match standing.as_ref().and_then(|standing| standing.reserved.as_ref()) {
        Some(own) if own.request == id => {
            explanation.summary = format!("{}; room at {} is reserved for it", explanation.summary, own.donor);
        }
        Some(other) if explanation.donors.iter().any(|donor| donor.obstacle.is_none()) => {
            let (donor, behind) = (&other.donor, other.request);
            explanation.summary =
                format!("{}; it must not delay {behind}, which has room at {donor} reserved", explanation.summary);
        }
        _ => {}
    }
    Some(Waiting { explanation, standing })
}

/// Where `spec` would be placed now, after those that wait already, and for how much.
#[must_use]
pub fn quote(state: &State, spec: &RequestSpec) -> Quote {
    let explanation = explain(state, spec);
    let mut planner = Planner::default();
    let Some(mut run) = planner.begin(state) else {
        return Quote { placement: None, explanation, earliest: None, price_milli_credits: 0 };
    };
    run.serve(&mut Plan::default(), MAX_PLACEMENTS_PER_COMMAND);
    let Some(candidate) = run.find(spec, None) else {
        let earliest = run.earliest(spec).map(|start| (start.at, start.candidate.placement.donor));
        return Quote { placement: None, explanation, earliest, price_milli_credits: 0 };
    };
    let earliest = Some((state.log_time, candidate.placement.donor.clone()));
    let rate = state
        .policy
        .as_ref()
        .and_then(|record| record.bundle.classes.get(candidate.class.as_str()))
        .map_or(0, |class| class.spec.price_credits_milli_per_gpu_hour);
    let price_milli_credits = price(rate, candidate.placement.milli(), spec.duration.0);
    Quote { placement: Some(candidate.placement), explanation, earliest, price_milli_credits }
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
