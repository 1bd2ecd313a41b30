//! What one broker knows of time, and what follows from it. Pure: `clock_exchange` is the shell around it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::group::clocks::log_clock::LogClock;
use crate::group::clocks::member_clocks::{Base, Led, MemberClocks, Own, Reading, is_off, offset};
use crate::group::elections::leadership::Tenure;

/// With wall clocks alone to begin with, a new leader waits so long for members that do not answer: the median of three
/// is worth more than that of two.
const PATIENCE: Duration = Duration::from_secs(1);
/// A broker whose wall clock is wrong stands for election all the same once it has seen no leader for so long.
pub(crate) const LEADERLESS: Duration = Duration::from_secs(3);

/// The moment of a decision, and what the broker knows besides its clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment<'a> {
    /// Monotonic time since this machine started.
    pub(crate) now: Duration,
    pub(crate) wall_ms: u64,
    pub(crate) voters: &'a BTreeSet<u64>,
    /// What re-bases have shifted, as the state of this broker has it.
    pub(crate) shift_ms: i64,
    /// Log time of the state of this broker.
    pub(crate) log_time_ms: u64,
}

/// One time of leading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lead {
    tenure: Tenure,
    since: Duration,
    founded: Option<Founded>,
    /// Whether `BeginTerm` is in the log. Before, nobody may take this leader for the end of the outage.
    begun: bool,
}

/// A leader whose log clock stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Founded {
    pub(crate) tenure: Tenure,
    /// How long no leader reached a majority before; `None` if nobody knows.
    pub(crate) outage: Option<Duration>,
}

/// Whether a leader may stamp entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Founding {
    /// It does not lead, or a majority is to answer yet.
    Waits,
    /// Only wall clocks are there: the state must have all that was committed before, so that log time does not go
    /// back.
    NeedsState,
    /// It may.
    Done(Founded),
}

/// How this broker's clocks stand to those of the majority.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Offsets {
    /// The median of the wall clocks of a majority, now; `None` where none is reached.
    pub(crate) reference_ms: Option<u64>,
    /// This broker's wall clock minus that.
    pub(crate) wall_ms: Option<i64>,
    /// Log time minus that.
    pub(crate) log_time_ms: Option<i64>,
    /// Whether its wall clock is wrong: from `MAX_WALL_OFFSET` until half of that.
    pub(crate) is_off: bool,
}

/// What one broker knows of time.
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
    pub(crate) fn founded(&self) -> Option<Founded> {
        self.lead.and_then(|lead| lead.founded)
    }

    /// Whether a leader was seen lately.
    pub(crate) fn sees_leader(&self, now: Duration) -> bool {
        self.lead.is_some() || now.saturating_sub(self.leader_seen) < LEADERLESS
    }

    fn own(&self, at: &Moment<'_>) -> Own {
        Own { id: self.id, now: at.now, wall_ms: at.wall_ms, log_ms: self.log_ms(at.now), led: self.led }
    }

    /// A member answered. Its log clock is taken over if it is the leader that this broker knows.
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

    /// A member did not answer.
    pub(crate) fn failed(&mut self, member: u64, now: Duration) {
        self.members.note_failed(member, now);
    }

    /// Forgets who is no member any more.
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

    /// This broker leads.
    pub(crate) fn leads(&mut self, tenure: Tenure, now: Duration) {
        if self.lead.is_none_or(|lead| lead.tenure != tenure) {
            self.lead = Some(Lead { tenure, since: now, founded: None, begun: false });
        }
    }

    /// It does not.
    pub(crate) fn follows(&mut self, now: Duration) {
        if self.lead.take().is_some() {
            self.leader_seen = now;
        }
        self.clock.coast(now);
    }

    /// `BeginTerm` of this tenure is in the log.
    pub(crate) fn term_began(&mut self, tenure: Tenure) {
        if let Some(lead) = self.lead.as_mut().filter(|lead| lead.tenure == tenure) {
            lead.begun = true;
        }
    }

    /// Lets a new leader stamp entries as soon as a majority agrees on the time. `caught_up` says that the state has
    /// all that was committed before it led.
    pub(crate) fn found(&mut self, at: &Moment<'_>, caught_up: bool) -> Founding {
        let Some(lead) = self.lead else { return Founding::Waits };
        if let Some(founded) = lead.founded {
            return Founding::Done(founded);
        }
        let own = self.own(at);
        let unshifted = |ms: u64| ms.saturating_add_signed(at.shift_ms.saturating_neg());
        let base = match self.members.base(at.voters, &own) {
            None => return Founding::Waits,
            Some(Base::LogClock(ms)) => ms,
            Some(Base::WallClock(_)) if !self.heard_all(at, lead.since) => return Founding::Waits,
            Some(Base::WallClock(_)) if !caught_up => return Founding::NeedsState,
            Some(Base::WallClock(ms)) => unshifted(ms),
        };
        let base = base.max(unshifted(at.log_time_ms));
        self.clock.found(at.now, base);
        let founded = Founded { tenure: lead.tenure, outage: self.members.outage(at.voters, &own, base) };
        self.lead = Some(Lead { founded: Some(founded), ..lead });
        Founding::Done(founded)
    }

    fn heard_all(&self, at: &Moment<'_>, since: Duration) -> bool {
        at.now.saturating_sub(since) >= PATIENCE || self.members.all_asked_since(at.voters, self.id, since)
    }

    /// Looks at all clocks. A leader also steers the log clock, and takes note of when it reached a majority:
    /// `majority_ago`.
    pub(crate) fn look(&mut self, at: &Moment<'_>, majority_ago: Option<Duration>) -> Offsets {
        let own = self.own(at);
        let log_time_ms = own.log_ms.map(|ms| ms.saturating_add_signed(at.shift_ms));
        let reference_ms = self.members.reference(at.voters, &own, log_time_ms);
        let against = |ms: u64| reference_ms.map(|reference| offset(ms, reference));
        let wall_ms = against(at.wall_ms);
        let log_offset = log_time_ms.and_then(against);
        if self.founded().is_some() {
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
        // A clock on the edge does not change sides at each look.
        self.is_off = wall_ms.is_some_and(|off| is_off(off) || (self.is_off && is_off(off.saturating_mul(2))));
        Offsets { reference_ms, wall_ms, log_time_ms: log_offset, is_off: self.is_off }
    }

    /// Voters to which a leader whose wall clock is wrong may hand over.
    pub(crate) fn right(&self, at: &Moment<'_>, reference_ms: u64) -> BTreeSet<u64> {
        self.members.right(at.voters, &self.own(at), reference_ms)
    }
}

#[cfg(test)]
mod tests;
