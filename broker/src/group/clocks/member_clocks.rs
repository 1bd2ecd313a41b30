//! Clock readings of all members, and their medians. Pure: times are arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::group::clocks::log_clock::lower_median;

/// Maximum offset of a wall clock from the majority's median. A broker beyond it warns and does not lead while others
/// can. NTP keeps clocks within 0.1 s of each other.
pub const MAX_WALL_OFFSET: Duration = Duration::from_secs(5);
/// A member whose last answer is older counts as unreachable.
const FRESH: Duration = Duration::from_millis(1_500);
/// Validity of a log clock reading: monotonic clocks drift by less than 10 ms meanwhile.
const KNOWN: Duration = Duration::from_secs(60);

/// When a member last knew of a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Led {
    /// `ago` before `as_of` on this broker's monotonic clock.
    Ago { ago: Duration, as_of: Duration },
    /// At this log clock time, before that member's machine booted.
    LogClock(u64),
}

impl Led {
    /// Age at `now`, when the log clock is at `log_ms`.
    pub(crate) fn ago(self, now: Duration, log_ms: u64) -> Duration {
        match self {
            Self::Ago { ago, as_of } => ago.saturating_add(now.saturating_sub(as_of)),
            Self::LogClock(then) => Duration::from_millis(log_ms.saturating_sub(then)),
        }
    }
}

/// One member's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Send time of the query, by this broker's monotonic clock.
    pub(crate) sent: Duration,
    /// Arrival of the answer.
    pub(crate) received: Duration,
    /// Its wall clock.
    pub(crate) wall_ms: u64,
    /// Its log clock.
    pub(crate) log_ms: Option<u64>,
    /// When it last knew of a leader.
    pub(crate) led: Option<Led>,
    /// Whether it leads.
    pub(crate) leads: bool,
}

impl Reading {
    /// Half the round trip, plus the time since arrival, in milliseconds.
    fn since(&self, now: Duration) -> u64 {
        let way = self.received.saturating_sub(self.sent) / 2;
        millis(now.saturating_sub(self.received).saturating_add(way))
    }

    fn wall(&self, now: Duration) -> u64 {
        self.wall_ms.saturating_add(self.since(now))
    }
}

/// This broker's own clocks at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own {
    pub(crate) id: u64,
    pub(crate) now: Duration,
    pub(crate) wall_ms: u64,
    pub(crate) log_ms: Option<u64>,
    pub(crate) led: Option<Led>,
}

/// Base of a new leader's log clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// The median log clock of those members of a majority that know it.
    LogClock(u64),
    /// The median wall clock of a majority whose members do not know the log clock.
    WallClock(u64),
}

/// The last answer of each member.
#[derive(Debug, Default)]
pub(crate) struct MemberClocks {
    readings: BTreeMap<u64, Reading>,
    /// Last failed query of each member.
    failed: BTreeMap<u64, Duration>,
}

impl MemberClocks {
    pub(crate) fn note(&mut self, member: u64, reading: Reading) {
        self.readings.insert(member, reading);
    }

    pub(crate) fn note_failed(&mut self, member: u64, now: Duration) {
        self.failed.insert(member, now);
    }

    /// Forgets former members.
    pub(crate) fn keep(&mut self, members: &BTreeSet<u64>) {
        self.readings.retain(|id, _| members.contains(id));
        self.failed.retain(|id, _| members.contains(id));
    }

    /// Whether every query of a voter since `begin` was answered or failed.
    pub(crate) fn all_asked_since(&self, voters: &BTreeSet<u64>, own: u64, begin: Duration) -> bool {
        let answered = |id: &u64| self.readings.get(id).is_some_and(|reading| reading.received >= begin);
        let failed = |id: &u64| self.failed.get(id).is_some_and(|at| *at >= begin);
        voters.iter().all(|id| *id == own || answered(id) || failed(id))
    }

    fn fresh<'a>(&'a self, voters: &'a BTreeSet<u64>, own: &Own) -> impl Iterator<Item = (u64, &'a Reading)> {
        let (id, now) = (own.id, own.now);
        let others = self.readings.iter().filter(move |(member, _)| **member != id && voters.contains(member));
        others.map(|(id, reading)| (*id, reading)).filter(move |(_, it)| now.saturating_sub(it.received) <= FRESH)
    }

    fn majority_is_reached(&self, voters: &BTreeSet<u64>, own: &Own) -> bool {
        let reached = self.fresh(voters, own).count() + usize::from(voters.contains(&own.id));
        reached > voters.len() / 2
    }

    /// Base of the log clock; `None` before a majority answered.
    pub(crate) fn base(&self, voters: &BTreeSet<u64>, own: &Own) -> Option<Base> {
        if !self.majority_is_reached(voters, own) {
            return None;
        }
        let known = self.readings.iter().filter(|(id, reading)| {
            **id != own.id && voters.contains(id) && own.now.saturating_sub(reading.received) <= KNOWN
        });
        let others = known.filter_map(|(_, it)| Some(it.log_ms?.saturating_add(it.since(own.now))));
        let log_clocks = lower_median(others.chain(own.log_ms).collect());
        log_clocks.map(Base::LogClock).or_else(|| lower_median(self.walls(voters, own)).map(Base::WallClock))
    }

    /// Time since any answering member knew of a leader with a majority; `None` if none ever did.
    pub(crate) fn outage(&self, voters: &BTreeSet<u64>, own: &Own, log_ms: u64) -> Option<Duration> {
        let others = self.readings.iter().filter(|(id, _)| **id != own.id && voters.contains(id));
        let all = others.filter_map(|(_, reading)| reading.led).chain(own.led);
        all.map(|led| led.ago(own.now, log_ms)).min()
    }

    fn walls(&self, voters: &BTreeSet<u64>, own: &Own) -> Vec<u64> {
        let others = self.fresh(voters, own).map(|(_, reading)| reading.wall(own.now));
        others.chain(voters.contains(&own.id).then_some(own.wall_ms)).collect()
    }

    /// Median wall clock of the reachable voters, if they are a majority. An even number of clocks cannot show which
    /// one is wrong, so log time (`log_time_ms`) breaks the tie.
    pub(crate) fn reference(&self, voters: &BTreeSet<u64>, own: &Own, log_time_ms: Option<u64>) -> Option<u64> {
        if !self.majority_is_reached(voters, own) {
            return None;
        }
        let mut walls = self.walls(voters, own);
        if walls.len().is_multiple_of(2) {
            walls.extend(log_time_ms);
        }
        lower_median(walls)
    }

    /// Other reachable voters whose wall clocks are correct.
    pub(crate) fn right(&self, voters: &BTreeSet<u64>, own: &Own, reference_ms: u64) -> BTreeSet<u64> {
        let right = |reading: &Reading| !is_off(offset(reading.wall(own.now), reference_ms));
        self.fresh(voters, own).filter(|(_, reading)| right(reading)).map(|(id, _)| id).collect()
    }

    /// Offset of another voter's wall clock in milliseconds, if the voter is reached and its clock is wrong.
    pub(super) fn wrong(&self, voter: u64, voters: &BTreeSet<u64>, own: &Own, reference_ms: u64) -> Option<i64> {
        let (_, reading) = self.fresh(voters, own).find(|(id, _)| *id == voter)?;
        Some(offset(reading.wall(own.now), reference_ms)).filter(|offset| is_off(*offset))
    }
}

/// `ms` minus `of_ms`, saturating.
pub(crate) fn offset(ms: u64, of_ms: u64) -> i64 {
    i64::try_from(i128::from(ms) - i128::from(of_ms)).unwrap_or(if ms > of_ms { i64::MAX } else { i64::MIN })
}

/// Whether an offset exceeds [`MAX_WALL_OFFSET`].
pub(crate) fn is_off(offset_ms: i64) -> bool {
    u128::from(offset_ms.unsigned_abs()) > MAX_WALL_OFFSET.as_millis()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
