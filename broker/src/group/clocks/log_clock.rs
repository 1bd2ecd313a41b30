//! The clock that entries of the log are stamped with.
//!
//! ```text
//!   log clock = base, agreed by a majority + monotonic time since + slew towards the majority's wall clocks
//!   log time  = log clock + what re-bases have shifted (in the state)
//! ```
//!
//! Wall clocks jump; monotonic ones do not. So no jump of a wall clock moves a lease by more than [`MAX_SLEW`] allows.
//! Nothing here reads a clock: all times are arguments.

use std::time::Duration;

/// The most that the log clock gains or loses on monotonic time within a minute: one part in a hundred. Clocks that are
/// kept by NTP drift a thousandth of that.
pub const MAX_SLEW: Duration = Duration::from_millis(600);
/// In which [`MAX_SLEW`] may pass.
const PER: Duration = Duration::from_secs(60);
/// Differences between wall clocks of this size are those of the network between them.
const NOT_WORTH_SLEWING: Duration = Duration::from_millis(10);

/// A line through time: where the log clock was, and how far it is still to be slewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    at: Duration,
    log_us: u64,
    slew_us: i64,
}

impl Line {
    fn at(&self, now: Duration) -> u64 {
        let passed = micros(now.saturating_sub(self.at));
        let most = slew_within(passed);
        let slewed = self.slew_us.clamp(most.saturating_neg(), most);
        self.log_us.saturating_add(passed).saturating_add_signed(slewed)
    }
}

/// The most that may be slewed while `passed` microseconds pass.
fn slew_within(passed_us: u64) -> i64 {
    let most = u128::from(passed_us) * MAX_SLEW.as_micros() / PER.as_micros();
    i64::try_from(most).unwrap_or(i64::MAX)
}

/// One broker's log clock. `now` is always its monotonic time since its machine started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LogClock {
    line: Option<Line>,
}

impl LogClock {
    /// The log clock in milliseconds, if this broker knows anything of it.
    pub(crate) fn now(&self, now: Duration) -> Option<u64> {
        self.line.map(|line| line.at(now) / 1_000)
    }

    /// Takes up a clock that was read at `at`: by this machine before a restart of the process, or by a new leader.
    pub(crate) fn found(&mut self, at: Duration, log_ms: u64) {
        self.line = Some(Line { at, log_us: log_ms.saturating_mul(1_000), slew_us: 0 });
    }

    /// The leader: from now on towards a clock that is `ahead_ms` ahead of this one.
    pub(crate) fn steer(&mut self, now: Duration, ahead_ms: i64) {
        let Some(line) = self.line else { return };
        let slight = ahead_ms.unsigned_abs() < millis(NOT_WORTH_SLEWING);
        let slew_us = if slight { 0 } else { ahead_ms.saturating_mul(1_000) };
        self.line = Some(Line { at: now, log_us: line.at(now), slew_us });
    }

    /// Nothing to go by: on with monotonic time.
    pub(crate) fn coast(&mut self, now: Duration) {
        self.steer(now, 0);
    }

    /// A follower: the leader's clock was at `log_ms` at some moment between `sent` and `received`. As long as one's
    /// own agrees with that it stays as it is, so that what the network adds does not add up.
    pub(crate) fn follow(&mut self, sent: Duration, received: Duration, log_ms: u64) {
        let earliest = log_ms.saturating_mul(1_000);
        // Whole milliseconds are told.
        let latest = earliest.saturating_add(micros(received.saturating_sub(sent))).saturating_add(1_000);
        let own = self.line.map(|line| line.at(received));
        let log_us = own.map_or(earliest / 2 + latest / 2, |own| own.clamp(earliest, latest));
        self.line = Some(Line { at: received, log_us, slew_us: 0 });
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The middle one; of an even number the lower of the two in the middle.
pub(crate) fn lower_median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let middle = values.len().checked_sub(1)? / 2;
    values.get(middle).copied()
}

#[cfg(test)]
mod tests;
