//! The clock that stamps log entries.
//!
//! ```text
//!   log clock = base, agreed by a majority + monotonic time since + slew towards the majority's wall clocks
//!   log time  = log clock + shifts by re-bases (in the state)
//! ```
//!
//! Wall clocks jump; monotonic ones do not. So no jump of a wall clock moves a lease by more than [`MAX_SLEW`] allows.
//! Nothing here reads a clock: all times are arguments.

use std::time::Duration;

/// Maximum slew per minute: 1 %. Clocks under NTP drift a thousandth of that.
pub const MAX_SLEW: Duration = Duration::from_millis(600);
/// Period of [`MAX_SLEW`].
const PER: Duration = Duration::from_secs(60);
/// Smaller differences between wall clocks are network jitter.
const NOT_WORTH_SLEWING: Duration = Duration::from_millis(10);

/// The log clock at one moment, and the remaining slew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ClockLine {
    at: Duration,
    log_us: u64,
    slew_us: i64,
}

impl ClockLine {
    fn at(&self, now: Duration) -> u64 {
        let passed = micros(now.saturating_sub(self.at));
        let most = slew_within(passed);
        let slewed = self.slew_us.clamp(most.saturating_neg(), most);
        self.log_us.saturating_add(passed).saturating_add_signed(slewed)
    }
}

/// Maximum slew within `passed_us` microseconds.
fn slew_within(passed_us: u64) -> i64 {
    let most = u128::from(passed_us) * MAX_SLEW.as_micros() / PER.as_micros();
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// One broker's log clock. `now` is always its monotonic time since its machine started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LogClock {
    line: Option<ClockLine>,
}

impl LogClock {
    /// The log clock in milliseconds, if known.
    pub(crate) fn now(&self, now: Duration) -> Option<u64> {
        self.line.map(|line| line.at(now) / 1_000)
    }

    /// Continues a clock that was read at `at`, by the previous process or by a new leader.
    pub(crate) fn start(&mut self, at: Duration, log_ms: u64) {
        self.line = Some(ClockLine { at, log_us: log_ms.saturating_mul(1_000), slew_us: 0 });
    }

    /// As the leader, slews towards a clock that is `ahead_ms` ahead of this one.
    pub(crate) fn steer(&mut self, now: Duration, ahead_ms: i64) {
        let Some(line) = self.line else { return };
        let slight = ahead_ms.unsigned_abs() < millis(NOT_WORTH_SLEWING);
        let slew_us = if slight { 0 } else { ahead_ms.saturating_mul(1_000) };
        self.line = Some(ClockLine { at: now, log_us: line.at(now), slew_us });
    }

    /// Continues on monotonic time alone.
    pub(crate) fn coast(&mut self, now: Duration) {
        self.steer(now, 0);
    }

    /// As a follower: the leader's clock was at `log_ms` between `sent` and `received`. Keeps the own clock while it is
    /// consistent with that, so that network delays do not accumulate.
    pub(crate) fn follow(&mut self, sent: Duration, received: Duration, log_ms: u64) {
        let earliest = log_ms.saturating_mul(1_000);
        // `log_ms` is rounded down to whole milliseconds.
        let latest = earliest.saturating_add(micros(received.saturating_sub(sent))).saturating_add(1_000);
        let own = self.line.map(|line| line.at(received));
        let log_us = own.map_or(earliest / 2 + latest / 2, |own| own.clamp(earliest, latest));
        self.line = Some(ClockLine { at: received, log_us, slew_us: 0 });
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The median; of an even count, the lower middle value.
pub(crate) fn lower_median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let middle = values.len().checked_sub(1)? / 2;
    values.get(middle).copied()
}

#[cfg(test)]
mod tests;
