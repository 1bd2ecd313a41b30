//! Answers for people: why a request waits, and what would happen to one.

use super::fit::fit;
use super::packs::Packs;
use super::plan::{best, donors};
use super::verdict::{DonorVerdict, ask_donor};
use super::view::View;
use crate::demand::RequestSpec;
use crate::placement::Placement;
use crate::state::State;

/// Why a request waits.
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
    /// Price of one term in thousandths of a credit.
    pub price_milli_credits: u64,
}

/// For each donor, the first reason against `spec` and what would unblock it.
#[must_use]
pub fn explain(state: &State, spec: &RequestSpec) -> Explanation {
    let Some(view) = View::new(state) else {
        return Explanation {
            donors: Vec::new(),
            summary: "no policy bundle is in force, so nothing is lent".to_owned(),
        };
    };
    let donors: Vec<DonorVerdict> = donors(state, spec)
        .map(|donor| DonorVerdict {
            donor: donor.clone(),
            obstacle: ask_donor(&view, spec, donor, &mut fit).err().map(|obstacle| *obstacle),
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

/// Where `spec` would be placed now, and for how much.
#[must_use]
pub fn quote(state: &State, spec: &RequestSpec) -> Quote {
    let explanation = explain(state, spec);
    let candidate = View::new(state).and_then(|view| {
        let mut packs = Packs::default();
        packs.begin(&view);
        best(&view, &mut packs, spec, None)
    });
    let Some(candidate) = candidate else { return Quote { placement: None, explanation, price_milli_credits: 0 } };
    let rate = state
        .policy
        .as_ref()
        .and_then(|record| record.bundle.classes.get(candidate.class.as_str()))
        .map_or(0, |class| class.spec.price_credits_milli_per_gpu_hour);
    let price_milli_credits = price(rate, candidate.placement.milli(), spec.duration.0);
    Quote { placement: Some(candidate.placement), explanation, price_milli_credits }
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
