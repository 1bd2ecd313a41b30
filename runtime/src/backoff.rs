//! Exponential backoff with full jitter: each delay is uniform between zero and the exponential ceiling, so that many
//! agents spread out. See <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>.

use std::time::Duration;

use crate::entropy::Entropy;

/// The delays between attempts.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    attempts: u32,
}

impl Backoff {
    /// Delays whose ceiling starts at `base` and doubles with each attempt up to `cap`.
    pub const fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap, attempts: 0 }
    }

    /// The delay before the next attempt.
    pub fn next_delay(&mut self, entropy: &dyn Entropy) -> Duration {
        let ceiling = self.ceiling();
        self.attempts = self.attempts.saturating_add(1);
        let ceiling_nanos = u64::try_from(ceiling.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(entropy.below(ceiling_nanos.saturating_add(1)))
    }

    /// The longest possible next delay.
    pub fn ceiling(&self) -> Duration {
        // 2^32 times any sensible base exceeds any sensible cap.
        let factor = 1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.cap)
    }

    /// Delays returned since the last [`reset`](Self::reset).
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Starts over after a success.
    pub const fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entropy::SeededEntropy;

    #[test]
    fn ceilings_double_to_the_cap_and_waits_stay_below() {
        let entropy = SeededEntropy::new(3);
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut ceilings = Vec::new();
        for _ in 0..50 {
            let ceiling = backoff.ceiling();
            ceilings.push(ceiling.as_millis());
            assert!(backoff.next_delay(&entropy) <= ceiling);
        }
        assert_eq!(ceilings[..8], [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(ceilings[49], 5000);
        backoff.reset();
        assert_eq!(backoff.ceiling(), Duration::from_millis(100));
    }

    #[test]
    fn waits_are_spread() {
        let entropy = SeededEntropy::new(4);
        let waits: std::collections::BTreeSet<_> = (0..100)
            .map(|_| Backoff::new(Duration::from_secs(1), Duration::from_secs(1)).next_delay(&entropy))
            .collect();
        assert!(waits.len() > 90);
        assert!(waits.first() < Some(&Duration::from_millis(200)));
        assert!(waits.last() > Some(&Duration::from_millis(800)));
    }
}
