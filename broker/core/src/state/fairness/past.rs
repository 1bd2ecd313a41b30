//! The past use of one tenant or institution, decayed by age.

use serde::{Deserialize, Serialize};

use crate::model::amounts::Amounts;
use crate::model::time::{Millis, Timestamp};
use crate::state::fairness::decay::{FIXED_ONE, decay};

/// Fractional bits of the mean, so that even a brief use leaves a trace.
const PARTS_BITS: u32 = 20;

/// The exponentially weighted mean of past use, up to a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// In 2^-20 of each resource's unit.
    mean: Amounts,
    /// The moment up to which `mean` counts.
    at: Timestamp,
}

impl Past {
    /// No use up to `now`.
    pub(crate) fn zero(now: Timestamp) -> Self {
        Self { mean: Amounts::default(), at: now }
    }

    /// The mean up to `now` if `held` was in use since `at`: `mean × d + held × (1 − d)` with d = 2^(−time /
    /// half-life).
    pub(crate) fn advanced(self, held: Amounts, now: Timestamp, half_life: Millis) -> Self {
        let keeps = decay(now.since(self.at), half_life);
        let mean = self.mean.combine(held, |mean, held| {
            let held = u128::from(to_fraction_units(held));
            let sum = u128::from(mean) * keeps + held * (FIXED_ONE - keeps);
            u64::try_from(sum.saturating_add(FIXED_ONE / 2) >> 64).unwrap_or(u64::MAX)
        });
        Self { mean, at: self.at.max(now) }
    }

    /// Shifts the timestamp after a re-base of log time.
    pub(crate) fn shift(&mut self, ms: i64) {
        let Self { mean: _, at } = self;
        *at = at.shifted(ms);
    }

    /// Present use plus the mean of past use, in 2^-20 of units.
    pub(crate) fn plus_held(self, held: Amounts) -> Amounts {
        self.mean.combine(held, |mean, held| mean.saturating_add(to_fraction_units(held)))
    }

    /// Whether the mean has decayed to nothing.
    pub(crate) fn is_negligible(&self, now: Timestamp, half_life: Millis) -> bool {
        self.mean.is_zero() || decay(now.since(self.at), half_life) == 0
    }
}

/// Converts units to 2^-20 of units.
pub(crate) fn to_fraction_units(amount: u64) -> u64 {
    // Leave a quarter of the range for sums.
    amount.min(u64::MAX >> (PARTS_BITS + 2)) << PARTS_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Millis = Millis::from_hours(24);

    fn gpus(milli: u64) -> Amounts {
        Amounts { gpu_milli: milli, ..Amounts::default() }
    }

    #[test]
    fn the_mean_is_halfway_after_one_half_life() {
        let past = Past::zero(Timestamp(0)).advanced(gpus(8_000), Timestamp(DAY.0), DAY);
        assert_eq!(past.mean, gpus(to_fraction_units(4_000)));
        let later = past.advanced(Amounts::default(), Timestamp(3 * DAY.0), DAY);
        assert_eq!(later.mean, gpus(to_fraction_units(1_000)));
        assert!(!later.is_negligible(Timestamp(60 * DAY.0), DAY) && later.is_negligible(Timestamp(70 * DAY.0), DAY));
    }

    #[test]
    fn many_small_steps_equal_one_large_step() {
        let mut stepped = Past::zero(Timestamp(0));
        for ms in (0..=3_600_000_u64).step_by(7) {
            stepped = stepped.advanced(gpus(50), Timestamp(ms), DAY);
        }
        stepped = stepped.advanced(gpus(50), Timestamp(3_600_000), DAY);
        let once = Past::zero(Timestamp(0)).advanced(gpus(50), Timestamp(3_600_000), DAY);
        let apart = stepped.mean.gpu_milli.abs_diff(once.mean.gpu_milli);
        assert!(apart * 10 < once.mean.gpu_milli, "{stepped:?} {once:?}");
    }

    #[test]
    fn the_largest_amounts_do_not_overflow() {
        let most = Amounts { gpu_milli: u64::MAX, cpu_milli: u64::MAX, memory_mib: u64::MAX };
        let past = Past::zero(Timestamp(0)).advanced(most, Timestamp(u64::MAX), Millis(1));
        assert!(past.plus_held(most).gpu_milli >= past.mean.gpu_milli);
    }
}
