//! Decides log time and clock offsets from all known clocks. Pure: `clock_exchange` does the I/O.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::group::clocks::log_clock::LogClock;
use crate::group::clocks::member_clocks::{Base, Led, MemberClocks, Own, Reading, is_off, offset};
use crate::group::elections::leadership::Tenure;

/// How long a new leader that knows only wall clocks waits for silent members: the median of three clocks is better
/// than that of two.
const SILENT_MEMBER_TIMEOUT: Duration = Duration::from_secs(1);
/// After this long without a leader, a broker with a wrong wall clock stands for election too.
pub(crate) const WRONG_CLOCK_ELECTION_DELAY: Duration = Duration::from_secs(3);

/// Inputs of a decision.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    /// Monotonic time since this machine started.
    pub(crate) now: Duration,
    pub(crate) wall_ms: u64,
    pub(crate) voters: &'a BTreeSet<u64>,
    /// Sum of re-bases in this broker's state.
    pub(crate) shift_ms: i64,
    /// Log time of this broker's state.
    pub(crate) log_time_ms: u64,
}

/// One tenure as leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lead {
    tenure: Tenure,
    since: Duration,
    started: Option<ClockStarted>,
    /// Whether `BeginTerm` is in the log; before, this tenure does not end an outage.
    begun: bool,
}

/// A leader whose log clock has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockStarted {
    pub(crate) tenure: Tenure,
    /// Time without a leader before; `None` if unknown.
    pub(crate) outage: Option<Duration>,
}

/// Whether a leader may stamp entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClockStart {
    /// Not leading, or waiting for a majority.
    Waits,
    /// Only wall clocks are known: the state must be caught up first, so that log time does not go back.
    NeedsState,
    /// Entries may be stamped.
    Done(ClockStarted),
}

/// Offsets of this broker's clocks from the majority's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Offsets {
    /// Current median of a majority's wall clocks; `None` if no majority is reached.
    pub(crate) reference_ms: Option<u64>,
    /// This broker's wall clock minus `reference_ms`.
    pub(crate) wall_ms: Option<i64>,
    /// Log time minus `reference_ms`.
    pub(crate) log_time_ms: Option<i64>,
    /// Whether the wall clock is wrong: set above `MAX_WALL_OFFSET`, cleared below half of it.
    pub(crate) is_off: bool,
}

/// Whether a new leader's state has every entry that was committed before its tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateProgress {
    /// Entries may be missing.
    Behind,
    /// It has every entry.
    CaughtUp,
}

/// All clocks known to one broker.
#[derive(Debug)]
pub(crate) struct Timekeeper {
    id: u64,
    clock: LogClock,
    members: MemberClocks,
    led: Option<Led>,
    leader_seen: Duration,
    lead: Option<Lead>,
    is_off: bool,
}

impl Timekeeper {
    pub(crate) fn new(id: u64, now: Duration, clock: LogClock, led: Option<Led>) -> Self {
        let members = MemberClocks::default();
        Self { id, clock, members, led, leader_seen: now, lead: None, is_off: false }
    }

    /// The log clock, if this broker knows anything of it.
    pub(crate) fn log_ms(&self, now: Duration) -> Option<u64> {
        self.clock.now(now)
    }

    /// When the group was last led, as this broker knows it.
    pub(crate) fn led(&self) -> Option<Led> {
        self.led
    }

    /// The tenure in which this broker leads and may stamp entries.
    pub(crate) fn started(&self) -> Option<ClockStarted> {
        self.lead.and_then(|lead| lead.started)
    }

    /// Whether a leader was seen within `WRONG_CLOCK_ELECTION_DELAY`.
    pub(crate) fn sees_leader(&self, now: Duration) -> bool {
        self.lead.is_some() || now.saturating_sub(self.leader_seen) < WRONG_CLOCK_ELECTION_DELAY
    }

    fn own(&self, at: &Moment<'_>) -> Own {
        Own { id: self.id, now: at.now, wall_ms: at.wall_ms, log_ms: self.log_ms(at.now), led: self.led }
    }

    /// Records a reading; follows its log clock if `member` is the known leader.
    pub(crate) fn answered(&mut self, member: u64, reading: Reading, leader: Option<u64>) {
        self.members.note(member, reading);
        if self.lead.is_some() || leader != Some(member) || !reading.leads {
            return;
        }
        self.leader_seen = reading.received;
        if let Some(log_ms) = reading.log_ms {
            self.clock.follow(reading.sent, reading.received, log_ms);
        }
        if let Some(Led::Ago { ago, as_of }) = reading.led {
            self.was_led(as_of, ago);
        }
    }

    /// Records that a member did not answer.
    pub(crate) fn failed(&mut self, member: u64, now: Duration) {
        self.members.note_failed(member, now);
    }

    /// Forgets former members.
    pub(crate) fn keep(&mut self, members: &BTreeSet<u64>) {
        self.members.keep(members);
    }

    fn was_led(&mut self, as_of: Duration, ago: Duration) {
        let newer = match self.led {
            Some(Led::Ago { ago: known, as_of: then }) => {
                // Both as ages at the later of the two moments.
                let at = as_of.max(then);
                ago.saturating_add(at.saturating_sub(as_of)) < known.saturating_add(at.saturating_sub(then))
            }
            Some(Led::LogClock(_)) | None => true,
        };
        if newer {
            self.led = Some(Led::Ago { ago, as_of });
        }
    }

    /// Begins a tenure as leader.
    pub(crate) fn leads(&mut self, tenure: Tenure, now: Duration) {
        if self.lead.is_none_or(|lead| lead.tenure != tenure) {
            self.lead = Some(Lead { tenure, since: now, started: None, begun: false });
        }
    }

    /// Ends the tenure.
    pub(crate) fn follows(&mut self, now: Duration) {
        if self.lead.take().is_some() {
            self.leader_seen = now;
        }
        self.clock.coast(now);
    }

    /// Records that the log has `BeginTerm` of this tenure.
    pub(crate) fn term_began(&mut self, tenure: Tenure) {
        if let Some(lead) = self.lead.as_mut().filter(|lead| lead.tenure == tenure) {
            lead.begun = true;
        }
    }

    /// Starts the log clock of a new leader once a majority agrees on the time.
    pub(crate) fn start(&mut self, at: &Moment<'_>, progress: StateProgress) -> ClockStart {
        let Some(lead) = self.lead else { return ClockStart::Waits };
        if let Some(started) = lead.started {
            return ClockStart::Done(started);
        }
        let own = self.own(at);
        let unshifted = |ms: u64| ms.saturating_add_signed(at.shift_ms.saturating_neg());
        let base = match self.members.base(at.voters, &own) {
            None => return ClockStart::Waits,
            Some(Base::LogClock(ms)) => ms,
            Some(Base::WallClock(_)) if !self.heard_all(at, lead.since) => return ClockStart::Waits,
            Some(Base::WallClock(_)) if progress == StateProgress::Behind => return ClockStart::NeedsState,
            Some(Base::WallClock(ms)) => unshifted(ms),
        };
        let base = base.max(unshifted(at.log_time_ms));
        self.clock.start(at.now, base);
        let started = ClockStarted { tenure: lead.tenure, outage: self.members.outage(at.voters, &own, base) };
        self.lead = Some(Lead { started: Some(started), ..lead });
        ClockStart::Done(started)
    }

    fn heard_all(&self, at: &Moment<'_>, since: Duration) -> bool {
        at.now.saturating_sub(since) >= SILENT_MEMBER_TIMEOUT || self.members.all_asked_since(at.voters, self.id, since)
    }

    /// Compares all clocks. A leader also steers the log clock and records when it last reached a majority,
    /// `majority_ago`.
    pub(crate) fn look(&mut self, at: &Moment<'_>, majority_ago: Option<Duration>) -> Offsets {
        let own = self.own(at);
        let log_time_ms = own.log_ms.map(|ms| ms.saturating_add_signed(at.shift_ms));
        let reference_ms = self.members.reference(at.voters, &own, log_time_ms);
        let against = |ms: u64| reference_ms.map(|reference| offset(ms, reference));
        let wall_ms = against(at.wall_ms);
        let log_offset = log_time_ms.and_then(against);
        if self.started().is_some() {
            match log_offset {
                Some(ahead) => self.clock.steer(at.now, ahead.saturating_neg()),
                None => self.clock.coast(at.now),
            }
        }
        if let Some(ago) = majority_ago
            && self.lead.is_some_and(|lead| lead.begun)
        {
            self.was_led(at.now, ago);
        }
        // Hysteresis.
        self.is_off = wall_ms.is_some_and(|off| is_off(off) || (self.is_off && is_off(off.saturating_mul(2))));
        Offsets { reference_ms, wall_ms, log_time_ms: log_offset, is_off: self.is_off }
    }

    /// Voters with correct wall clocks, to which a leader with a wrong one may hand over.
    pub(crate) fn right(&self, at: &Moment<'_>, reference_ms: u64) -> BTreeSet<u64> {
        self.members.right(at.voters, &self.own(at), reference_ms)
    }

    /// Offset of another voter's wall clock in milliseconds, if it is wrong.
    pub(super) fn wrong(&self, at: &Moment<'_>, voter: u64) -> Option<i64> {
        let own = self.own(at);
        let reference = self.members.reference(at.voters, &own, Some(at.log_time_ms))?;
        self.members.wrong(voter, at.voters, &own, reference)
    }
}

#[cfg(test)]
mod tests;
