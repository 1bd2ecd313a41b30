//! The best rate at which bytes arrived from one cluster. Pure.
//!
//! A rate covers the shortest window with enough bytes: one second on a fast line, up to ten on a slow one. It is a
//! lower bound: the sender may have had no more to send.

use std::collections::VecDeque;
use std::time::Duration;

/// Shortest window: a burst from a buffer may fill a shorter one.
const MIN_WINDOW: Duration = Duration::from_secs(1);
/// Longest window: over a longer one the line was idle in between.
const MAX_WINDOW: Duration = Duration::from_secs(10);
/// Bytes that a window needs: on most lines a connection has then finished its slow start.
const ENOUGH_BYTES: u64 = 8 << 20;
/// Most readings that are kept: enough for the longest window at one a second.
const MAX_READINGS: usize = 16;
/// How long the best rate counts.
const HOURS: u64 = 24;
const HOUR_SECONDS: u64 = 3_600;

/// Recent arrivals from one cluster.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Time of each reading and total bytes until then; the oldest first.
    readings: VecDeque<(Duration, u64)>,
    /// Best rate in Mbit/s of each hour that has one, by the hour's number; the oldest first.
    best: VecDeque<(u64, u64)>,
}

impl Meter {
    /// Records that `bytes` arrived since the last call; `at` is monotonic.
    pub(super) fn record(&mut self, at: Duration, bytes: u64) {
        let all = self.readings.back().map_or(0, |(_, all)| *all).saturating_add(bytes);
        let since = |then: Duration| at.saturating_sub(then);
        let enough = self
            .readings
            .iter()
            .rev()
            .find(|(then, before)| since(*then) >= MIN_WINDOW && all.saturating_sub(*before) >= ENOUGH_BYTES);
        if let Some((then, before)) = enough.filter(|(then, _)| since(*then) <= MAX_WINDOW) {
            let micros = since(*then).as_micros().max(1);
            // Bits per microsecond are Mbit/s.
            let mbits = u128::from(all - before) * 8 / micros;
            self.note(at.as_secs() / HOUR_SECONDS, u64::try_from(mbits).unwrap_or(u64::MAX));
        }
        self.readings.push_back((at, all));
        while self.readings.len() > MAX_READINGS
            || self.readings.front().is_some_and(|(then, _)| since(*then) > MAX_WINDOW)
        {
            self.readings.pop_front();
        }
        let hour = at.as_secs() / HOUR_SECONDS;
        self.best.retain(|(of, _)| of + HOURS > hour);
    }

    fn note(&mut self, hour: u64, mbits: u64) {
        match self.best.back_mut().filter(|(of, _)| *of == hour) {
            Some((_, best)) => *best = mbits.max(*best),
            None => self.best.push_back((hour, mbits)),
        }
    }

    /// Best rate of the last day in Mbit/s; `None` if too little arrived.
    pub(super) fn mbits(&self) -> Option<u64> {
        self.best.iter().map(|(_, mbits)| *mbits).max().filter(|mbits| *mbits > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn of(readings: &[(u64, u64)]) -> Option<u64> {
        let mut meter = Meter::default();
        for (at, mib) in readings {
            meter.record(seconds(*at), mib * MIB);
        }
        meter.mbits()
    }

    #[test]
    fn a_rate_covers_the_shortest_window_with_enough_bytes() {
        // 125 MiB in a second are 1,048 Mbit/s; the rate is lower before and after.
        assert_eq!(of(&[(0, 0), (1, 10), (2, 125), (3, 10)]), Some(1_048));
        // A slow line needs a longer window: 1 MiB/s for eight seconds.
        assert_eq!(of(&[(0, 0), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1)]), Some(8));
        // A little traffic now and then is no rate.
        assert_eq!(of(&[(0, 0), (1, 1), (5, 1), (9, 1), (13, 1), (17, 1)]), None);
        assert_eq!(of(&[(0, 0), (1, 7), (12, 7)]), None);
        // Bytes before the first reading have no known duration.
        assert_eq!(of(&[(5, 500)]), None);
        // Late readings count the time that passed.
        assert_eq!(of(&[(0, 0), (4, 500)]), Some(1_048));
    }

    #[test]
    fn frequent_readings_cover_a_whole_second() {
        let mut meter = Meter::default();
        for tenth in 0..=10 {
            meter.record(Duration::from_millis(tenth * 100), if tenth == 3 { 20 * MIB } else { 0 });
        }
        assert_eq!(meter.mbits(), Some(167), "20 MiB in one second, though they came at once");
    }

    #[test]
    fn the_best_of_a_day_counts_and_then_no_more() {
        let mut meter = Meter::default();
        let second = |meter: &mut Meter, hour: u64, mib: u64| {
            meter.record(seconds(hour * 3_600), 0);
            meter.record(seconds(hour * 3_600 + 1), mib * MIB);
        };
        second(&mut meter, 0, 100);
        second(&mut meter, 5, 50);
        assert_eq!(meter.mbits(), Some(838));
        meter.record(seconds(24 * 3_600), 0);
        assert_eq!(meter.mbits(), Some(419));
        meter.record(seconds(29 * 3_600), 0);
        assert_eq!(meter.mbits(), None);
        assert!(meter.best.is_empty() && meter.readings.len() <= MAX_READINGS);
    }
}
