//! A seeded random number generator: SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators",
//! 2014).

use std::ops::RangeInclusive;
use std::time::Duration;

/// A generator of draws. Two with the same seed draw the same.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// A generator with a seed.
    #[must_use]
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// An independent generator, unaffected by later draws from this one.
    #[must_use]
    pub(crate) fn split(&mut self) -> Self {
        Self(self.bits())
    }

    /// A number from a range, with a negligible bias to small ones.
    pub(crate) fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        let span = range.end().saturating_sub(*range.start()).saturating_add(1);
        range.start() + self.bits() % span.max(1)
    }

    /// An index below `count`; 0 if there is none.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.bits() % (count as u64).max(1)).unwrap_or(0)
    }

    /// A duration from a range in milliseconds.
    pub(crate) fn time(&mut self, range_ms: RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.within(range_ms))
    }

    /// True with probability 1 / `times`.
    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.within(1..=times) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::Dice;

    #[test]
    fn the_same_seed_draws_the_same_and_another_does_not() {
        let draw = |seed| {
            let mut dice = Dice::new(seed);
            (0..100).map(|_| dice.within(3..=9)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let drawn = draw(7);
        assert!((3..=9).all(|number| drawn.contains(&number)) && drawn.iter().all(|n| (3..=9).contains(n)));
    }
}
