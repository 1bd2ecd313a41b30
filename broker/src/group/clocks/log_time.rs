//! Log time, which stamps entries, and the status of this broker's clocks. `timekeeper` decides; it is pure.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comity_core::command::RebaseTime;
use comity_core::{Millis, Timestamp};
use comity_proto::raft::v1::ExchangeClocksResponse;
use openraft::async_runtime::WatchReceiver as _;
use openraft::{Instant as _, ReadPolicy, ServerState};
use tokio::sync::watch;
use tracing::info;

use crate::group::clocks::boot_clock;
use crate::group::clocks::clock_file::Restored;
use crate::group::clocks::member_clocks::Led;
use crate::group::clocks::timekeeper::{ClockStart, ClockStarted, Moment, Offsets, StateProgress, Timekeeper};
use crate::group::propose::Deadline;
use crate::group::{Group, Inner, Leadership, Tenure};

/// Time for the state to catch up before a leader starts from wall clocks alone.
const STATE_CATCH_UP_TIMEOUT: Duration = Duration::from_secs(1);
/// Poll interval while a leader may not stamp entries yet.
const STAMP_POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The clocks of one broker, shared by all handles of its group.
pub(crate) struct Clocks {
    keeper: Mutex<Timekeeper>,
    started: watch::Sender<Option<ClockStarted>>,
    pub(super) offsets: watch::Sender<Offsets>,
    /// Sum of re-bases, cached so that reading it does not wait for apply.
    shift_ms: AtomicI64,
}

/// Status of one broker's clocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClockStatus {
    /// Log time, now.
    pub log_time: Timestamp,
    /// This broker's wall clock minus the median of a majority's; `None` where no majority is reached.
    pub clock_offset_ms: Option<i64>,
    /// Log time minus that median.
    pub log_time_offset_ms: Option<i64>,
    /// Sum of re-bases.
    pub time_shift_ms: i64,
}

/// The shift of log time by a re-base now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebase {
    /// Log time before.
    pub log_time: Timestamp,
    /// Shift to the median of a majority's wall clocks.
    pub by_ms: i64,
    /// Command that carries it out.
    pub command: RebaseTime,
}

impl Clocks {
    pub(crate) fn new(id: u64, restored: Restored) -> Self {
        let keeper = Timekeeper::new(id, boot_clock::now(), restored.clock, restored.led);
        Self {
            keeper: Mutex::new(keeper),
            started: watch::Sender::new(None),
            offsets: watch::Sender::new(Offsets::default()),
            shift_ms: AtomicI64::new(0),
        }
    }

    pub(super) fn keeper(&self) -> MutexGuard<'_, Timekeeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `BeginTerm` of this tenure is in the log.
    pub(crate) fn term_began(&self, tenure: Tenure) {
        self.keeper().term_began(tenure);
    }
}

impl Group {
    /// Current log time, with which the next entry would be stamped. On followers it is within a few milliseconds of
    /// the leader's.
    pub fn log_now(&self) -> Timestamp {
        let log_ms = self.inner.clocks.keeper().log_ms(boot_clock::now());
        self.inner.replica.read(|replicated| {
            let state = &replicated.state;
            let now = log_ms.map(|ms| Timestamp(ms).shifted(state.time_shift_ms));
            // Before the clock is known, the last entry's time.
            now.map_or(state.log_time, |now| now.max(state.log_time))
        })
    }

    /// Status of this broker's clocks against a majority's.
    pub fn clocks(&self) -> ClockStatus {
        let offsets = *self.inner.clocks.offsets.borrow();
        ClockStatus {
            log_time: self.log_now(),
            clock_offset_ms: offsets.wall_ms,
            log_time_offset_ms: offsets.log_time_ms,
            time_shift_ms: self.inner.replica.read(|replicated| replicated.state.time_shift_ms),
        }
    }

    /// How log time would move if it were re-based now; `None` where no majority of the brokers is reached.
    pub fn rebase(&self) -> Option<Rebase> {
        let status = self.clocks();
        let by_ms = status.log_time_offset_ms?.saturating_neg();
        let command = RebaseTime { from_shift_ms: status.time_shift_ms, by_ms };
        Some(Rebase { log_time: status.log_time, by_ms, command })
    }

    /// Time without a leader before this tenure, as far as the members know. Waits until a majority agrees on the time;
    /// `None` if this broker does not lead.
    pub async fn outage(&self) -> Option<Millis> {
        let mut started = self.inner.clocks.started.subscribe();
        loop {
            let tenure = self.inner.tenure()?;
            let found = *started.borrow_and_update();
            if let Some(found) = found.filter(|found| found.tenure == tenure) {
                let outage = found.outage.map_or(u64::MAX, millis);
                return Some(Millis(outage));
            }
            // Timeout or change: check again.
            let _ = tokio::time::timeout(STAMP_POLL_INTERVAL, started.changed()).await;
        }
    }

    /// This broker's clocks, for a peer.
    pub(crate) fn clock_reading(&self) -> ExchangeClocksResponse {
        let inner = &self.inner;
        let tenure = inner.tenure();
        let (now, wall_ms) = (boot_clock::now(), inner.clock.unix_ms());
        let keeper = inner.clocks.keeper();
        let log_clock_ms = keeper.log_ms(now);
        let ago = match keeper.led() {
            Some(led @ Led::Ago { .. }) => Some(millis(led.ago(now, 0))),
            Some(Led::LogClock(_)) | None => None,
        };
        ExchangeClocksResponse {
            broker: inner.config.id,
            wall_ms,
            log_clock_ms,
            led_ago_ms: ago,
            led_log_clock_ms: match keeper.led() {
                Some(Led::LogClock(then)) => Some(then),
                Some(Led::Ago { .. }) | None => log_clock_ms.zip(ago).map(|(log_ms, ago)| log_ms.saturating_sub(ago)),
            },
            leads: tenure.is_some() && keeper.started().map(|started| started.tenure) == tenure,
        }
    }
}

impl Inner {
    /// The term that consensus leads here, whether a majority answers or not.
    pub(super) fn leading_term(&self) -> Option<u64> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        (metrics.state == ServerState::Leader).then_some(metrics.vote.leader_id.term)
    }

    /// The tenure in which this broker leads, if it does.
    fn tenure(&self) -> Option<Tenure> {
        match *self.leadership.borrow() {
            Leadership::Leader(tenure) if self.leading_term() == Some(tenure.term) => Some(tenure),
            _ => None,
        }
    }

    /// Waits until this leader may stamp entries; returns the stamp and the tenure.
    pub(crate) async fn stamp(&self, timeout: Duration) -> Option<(Timestamp, Tenure)> {
        let deadline = Deadline::within(timeout);
        let mut started = self.clocks.started.subscribe();
        loop {
            let tenure = self.tenure()?;
            if started.borrow_and_update().is_some_and(|started| started.tenure == tenure) {
                return self.clocks.keeper().log_ms(boot_clock::now()).map(|ms| (Timestamp(ms), tenure));
            }
            let left = deadline.left();
            if left.is_zero() {
                return None;
            }
            // Timeout or change: check again.
            let _ = tokio::time::timeout(left.min(STAMP_POLL_INTERVAL), started.changed()).await;
        }
    }

    /// Time for checking callers' certificates: log time, because this broker's wall clock may be wrong; the wall clock
    /// while log time is unknown. Never waits for the state.
    pub(crate) fn certificate_time(&self) -> SystemTime {
        let shift_ms = self.clocks.shift_ms.load(Ordering::Relaxed);
        let log_ms = self.clocks.keeper().log_ms(boot_clock::now());
        let log_time = log_ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms.saturating_add_signed(shift_ms)));
        log_time.unwrap_or_else(|| self.clock.now())
    }

    /// Time for checking the certificates of callers who put log time right. While that is ahead of the majority's wall
    /// clocks, it voids certificates that are good, also those of the maintainers who must move it.
    pub(crate) fn certificate_time_for_repair(&self) -> SystemTime {
        let majority = self.clocks.offsets.borrow().reference_ms;
        let log_time = self.certificate_time();
        majority.map_or(log_time, |ms| log_time.min(UNIX_EPOCH + Duration::from_millis(ms)))
    }

    fn voters(&self) -> BTreeSet<u64> {
        self.raft.server_metrics().borrow_watched().membership_config.voter_ids().collect()
    }

    /// How far the wall clock of another voter is off, in milliseconds, if that is too far to lead.
    pub(crate) fn wrong_clock_of(&self, voter: u64) -> Option<i64> {
        self.at_this_moment(|keeper, at| keeper.wrong(at, voter))
    }

    /// Runs `decide` with all inputs of the current moment.
    pub(crate) fn at_this_moment<T>(&self, decide: impl FnOnce(&mut Timekeeper, &Moment<'_>) -> T) -> T {
        let voters = self.voters();
        let (shift_ms, log_time) =
            self.replica.read(|replicated| (replicated.state.time_shift_ms, replicated.state.log_time));
        self.clocks.shift_ms.store(shift_ms, Ordering::Relaxed);
        let mut keeper = self.clocks.keeper();
        let (now, wall_ms) = (boot_clock::now(), self.clock.unix_ms());
        decide(&mut keeper, &Moment { now, wall_ms, voters: &voters, shift_ms, log_time_ms: log_time.0 })
    }

    /// Tracks leadership and starts the log clock of a new tenure. A leader that regains its majority begins a new
    /// tenure, so that the outage counts.
    pub(super) async fn follow_leadership(&self) {
        let Some(tenure) = self.tenure() else {
            if self.clocks.started.send_if_modified(|started| started.take().is_some()) {
                self.clocks.keeper().follows(boot_clock::now());
            }
            return;
        };
        if self.clocks.started.borrow().is_some_and(|started| started.tenure == tenure) {
            return;
        }
        let mut start = self.at_this_moment(|keeper, at| {
            keeper.leads(tenure, at.now);
            keeper.start(at, StateProgress::Behind)
        });
        if start == ClockStart::NeedsState && self.has_caught_up().await {
            start = self.at_this_moment(|keeper, at| keeper.start(at, StateProgress::CaughtUp));
        }
        if let ClockStart::Done(started) = start {
            info!(term = tenure.term, outage_ms = ?started.outage.map(millis), "log time goes on");
            self.clocks.started.send_replace(Some(started));
        }
    }

    async fn has_caught_up(&self) -> bool {
        let caught_up = async {
            let read = self.raft.get_read_log_id(ReadPolicy::ReadIndex).await;
            match read {
                Ok((read, _applied)) => {
                    self.replica.applied(read.log_id().index).await;
                    true
                }
                Err(_) => false,
            }
        };
        tokio::time::timeout(STATE_CATCH_UP_TIMEOUT, caught_up).await.unwrap_or(false)
    }

    /// Time since this leader last reached a majority.
    pub(super) fn majority_ago(&self) -> Option<Duration> {
        self.leading_term()?;
        if self.voters() == BTreeSet::from([self.config.id]) {
            return Some(Duration::ZERO);
        }
        let metrics = self.raft.data_metrics();
        let acked = metrics.borrow_watched().last_quorum_acked?;
        Some(acked.into_inner().elapsed())
    }

    /// Transfers leadership to the most advanced voter in `right`.
    pub(super) async fn hand_over_for_clock(&self, right: &BTreeSet<u64>) -> Option<u64> {
        let successor = {
            let metrics = self.raft.data_metrics();
            let metrics = metrics.borrow_watched();
            let progress = metrics.replication.iter().flatten().filter(|(id, _)| right.contains(id));
            progress.max_by_key(|(_, matched)| **matched).map(|(id, _)| *id)
        };
        self.raft.trigger().transfer_leader(successor?).await.ok()?;
        successor
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
