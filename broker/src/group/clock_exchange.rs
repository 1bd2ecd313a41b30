//! Keeps the log clock: asks the other members for theirs, lets a new leader begin with what a majority agrees on, and
//! looks whether this broker's wall clock is right. What follows from the answers is in `timekeeper`, which is pure.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comity_core::command::RebaseTime;
use comity_core::{Millis, Timestamp};
use comity_proto::raft::v1::ExchangeClocksResponse;
use comity_runtime::clock::{Clock, Sleep};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use openraft::async_runtime::WatchReceiver as _;
use openraft::{Instant as _, ReadPolicy, ServerState};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::clock_file::{ClockFile, Restored};
use super::election_gate::Reason;
use super::member_clocks::{Led, MAX_WALL_OFFSET, Reading, is_off};
use super::propose::Deadline;
use super::timekeeper::{Founded, Founding, Moment, Offsets, Timekeeper};
use super::{Group, Inner, Leadership, Tenure, boot_clock};
use crate::transport::CallError;

/// Between two questions to each member.
const EVERY: Duration = Duration::from_millis(500);
/// For an answer. Later ones say little: the way there and back is not known to be even.
const ANSWER: Duration = Duration::from_millis(450);
/// For the state to have all that was committed before a leader that begins with wall clocks alone.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Looks between two writes of the clock file.
const LOOKS_PER_WRITE: u32 = 2;
/// Between two looks whether a leader may stamp entries, where nothing says that it may.
const PAUSE: Duration = Duration::from_millis(25);

/// The clocks of one broker, shared by all handles of its group.
pub(super) struct Clocks {
    keeper: Mutex<Timekeeper>,
    founded: watch::Sender<Option<Founded>>,
    offsets: watch::Sender<Offsets>,
    /// What re-bases have shifted, as this broker saw it last: known without waiting for what is being applied.
    shift_ms: AtomicI64,
}

/// How one broker's clocks stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClockStatus {
    /// Log time, now.
    pub log_time: Timestamp,
    /// This broker's wall clock minus the median of a majority's; `None` where no majority is reached.
    pub clock_offset_ms: Option<i64>,
    /// Log time minus that median.
    pub log_time_offset_ms: Option<i64>,
    /// What re-bases have shifted.
    pub time_shift_ms: i64,
}

/// How log time would move if it were re-based now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebase {
    /// Log time before.
    pub log_time: Timestamp,
    /// By how much: to the median of the wall clocks of a majority.
    pub by_ms: i64,
    /// What carries it out.
    pub command: RebaseTime,
}

impl Clocks {
    pub(super) fn new(id: u64, restored: Restored) -> Self {
        let keeper = Timekeeper::new(id, boot_clock::now(), restored.clock, restored.led);
        Self {
            keeper: Mutex::new(keeper),
            founded: watch::Sender::new(None),
            offsets: watch::Sender::new(Offsets::default()),
            shift_ms: AtomicI64::new(0),
        }
    }

    fn keeper(&self) -> MutexGuard<'_, Timekeeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `BeginTerm` of this tenure is in the log.
    pub(super) fn term_began(&self, tenure: Tenure) {
        self.keeper().term_began(tenure);
    }
}

impl Group {
    /// Log time, now: what the next entry would be stamped with. On followers within a few milliseconds of the
    /// leader's.
    pub fn log_now(&self) -> Timestamp {
        let log_ms = self.inner.clocks.keeper().log_ms(boot_clock::now());
        self.inner.replica.look(|replicated| {
            let state = &replicated.state;
            let now = log_ms.map(|ms| Timestamp(ms).shifted(state.time_shift_ms));
            // A broker that knows nothing of the time yet has the last entry's.
            now.map_or(state.log_time, |now| now.max(state.log_time))
        })
    }

    /// How this broker's clocks stand to those of a majority.
    pub fn clocks(&self) -> ClockStatus {
        let offsets = *self.inner.clocks.offsets.borrow();
        ClockStatus {
            log_time: self.log_now(),
            clock_offset_ms: offsets.wall_ms,
            log_time_offset_ms: offsets.log_time_ms,
            time_shift_ms: self.inner.replica.look(|replicated| replicated.state.time_shift_ms),
        }
    }

    /// How log time would move if it were re-based now; `None` where no majority of the brokers is reached.
    pub fn rebase(&self) -> Option<Rebase> {
        let status = self.clocks();
        let by_ms = status.log_time_offset_ms?.saturating_neg();
        let command = RebaseTime { from_shift_ms: status.time_shift_ms, by_ms };
        Some(Rebase { log_time: status.log_time, by_ms, command })
    }

    /// How long no leader reached a majority before this broker led, as far as the members know. Waits until a majority
    /// agrees on the time; `None` where this broker does not lead.
    pub async fn outage(&self) -> Option<Millis> {
        let mut founded = self.inner.clocks.founded.subscribe();
        loop {
            let tenure = self.inner.tenure()?;
            let found = *founded.borrow_and_update();
            if let Some(found) = found.filter(|found| found.tenure == tenure) {
                let outage = found.outage.map_or(u64::MAX, millis);
                return Some(Millis(outage));
            }
            // Whether it changed or not: looks again.
            let _ = tokio::time::timeout(PAUSE, founded.changed()).await;
        }
    }

    /// What another member is told.
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
            leads: tenure.is_some() && keeper.founded().map(|founded| founded.tenure) == tenure,
        }
    }
}

impl Inner {
    /// The term in which consensus takes this broker for the leader, whether a majority answers or not.
    fn leading_term(&self) -> Option<u64> {
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

    /// The time of an entry that this broker stores as the leader, as soon as it may, and the tenure it is of.
    pub(super) async fn stamp(&self, timeout: Duration) -> Option<(Timestamp, Tenure)> {
        let deadline = Deadline::within(timeout);
        let mut founded = self.clocks.founded.subscribe();
        loop {
            let tenure = self.tenure()?;
            if founded.borrow_and_update().is_some_and(|founded| founded.tenure == tenure) {
                return self.clocks.keeper().log_ms(boot_clock::now()).map(|ms| (Timestamp(ms), tenure));
            }
            let left = deadline.left();
            if left.is_zero() {
                return None;
            }
            // Whether it changed or not: looks again.
            let _ = tokio::time::timeout(left.min(PAUSE), founded.changed()).await;
        }
    }

    /// The time by which callers' certificates are judged: log time, for this broker's wall clock may be wrong; that
    /// one while log time is not known here. Never waits for the state.
    pub(crate) fn certificate_time(&self) -> SystemTime {
        let shift_ms = self.clocks.shift_ms.load(Ordering::Relaxed);
        let log_ms = self.clocks.keeper().log_ms(boot_clock::now());
        let log_time = log_ms.map(|ms| UNIX_EPOCH + Duration::from_millis(ms.saturating_add_signed(shift_ms)));
        log_time.unwrap_or_else(|| self.clock.now())
    }

    fn voters(&self) -> BTreeSet<u64> {
        self.raft.server_metrics().borrow_watched().membership_config.voter_ids().collect()
    }

    /// Decides something by all that is known at this moment.
    fn at_this_moment<T>(&self, decide: impl FnOnce(&mut Timekeeper, &Moment<'_>) -> T) -> T {
        let voters = self.voters();
        let (shift_ms, log_time) =
            self.replica.look(|replicated| (replicated.state.time_shift_ms, replicated.state.log_time));
        self.clocks.shift_ms.store(shift_ms, Ordering::Relaxed);
        let mut keeper = self.clocks.keeper();
        let (now, wall_ms) = (boot_clock::now(), self.clock.unix_ms());
        decide(&mut keeper, &Moment { now, wall_ms, voters: &voters, shift_ms, log_time_ms: log_time.0 })
    }

    /// How far the wall clock of a voter besides this broker is off, in milliseconds, if that is too far to lead.
    pub(super) fn wrong_clock_of(&self, voter: u64) -> Option<i64> {
        self.at_this_moment(|keeper, at| keeper.wrong(at, voter))
    }

    /// Takes note of whether this broker leads, and lets it stamp entries as soon as it may. One that lost its majority
    /// begins again once it is back, so that the outage counts.
    async fn follow_leadership(&self) {
        let Some(tenure) = self.tenure() else {
            if self.clocks.founded.send_if_modified(|founded| founded.take().is_some()) {
                self.clocks.keeper().follows(boot_clock::now());
            }
            return;
        };
        if self.clocks.founded.borrow().is_some_and(|founded| founded.tenure == tenure) {
            return;
        }
        let mut founding = self.at_this_moment(|keeper, at| {
            keeper.leads(tenure, at.now);
            keeper.found(at, false)
        });
        if founding == Founding::NeedsState && self.has_caught_up().await {
            founding = self.at_this_moment(|keeper, at| keeper.found(at, true));
        }
        if let Founding::Done(founded) = founding {
            info!(term = tenure.term, outage_ms = ?founded.outage.map(millis), "log time goes on");
            self.clocks.founded.send_replace(Some(founded));
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
        tokio::time::timeout(CATCH_UP, caught_up).await.unwrap_or(false)
    }

    /// How long ago this broker, as the leader, last reached a majority.
    fn majority_ago(&self) -> Option<Duration> {
        self.leading_term()?;
        if self.voters() == BTreeSet::from([self.config.id]) {
            return Some(Duration::ZERO);
        }
        let metrics = self.raft.data_metrics();
        let acked = metrics.borrow_watched().last_quorum_acked?;
        Some(acked.into_inner().elapsed())
    }

    /// A leader whose wall clock is wrong hands over to the voter that is furthest among those whose clocks are right.
    async fn hand_over_for_clock(&self, right: &BTreeSet<u64>) -> Option<u64> {
        let heir = {
            let metrics = self.raft.data_metrics();
            let metrics = metrics.borrow_watched();
            let progress = metrics.replication.iter().flatten().filter(|(id, _)| right.contains(id));
            progress.max_by_key(|(_, matched)| **matched).map(|(id, _)| *id)
        };
        self.raft.trigger().transfer_leader(heir?).await.ok()?;
        heir
    }
}

type Asked = (u64, Duration, Duration, Result<ExchangeClocksResponse, CallError>);

/// What the task that asks has at hand.
struct Exchange {
    asked: FuturesUnordered<BoxFuture<'static, Asked>>,
    asking: BTreeSet<u64>,
    boot_id: Option<String>,
    dir: PathBuf,
    looks: u32,
    writing: Option<JoinHandle<()>>,
    /// What was said last of this broker's wall clock, of log time, and of handing over, so that it is said once.
    said: Said,
}

#[derive(Default)]
struct Said {
    wrong_clock: bool,
    far_log_time: bool,
    hands_over: bool,
    write_failed: Arc<AtomicBool>,
}

enum Event {
    Look,
    LeadershipChanged,
    Answered(Asked),
}

/// Asks and looks until the group stops or its last handle is gone.
pub(super) async fn run(group: Weak<Inner>, clock: Arc<dyn Clock>, stop: CancellationToken) {
    let Some(mut exchange) = group.upgrade().map(|inner| Exchange::of(&inner)) else { return };
    let Some(mut leadership) = group.upgrade().map(|inner| inner.leadership.clone()) else { return };
    let mut next: Sleep = clock.sleep(Duration::ZERO);
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => break,
            changed = leadership.changed() => match changed {
                Ok(()) => Event::LeadershipChanged,
                Err(_) => break,
            },
            () = &mut next => Event::Look,
            Some(asked) = exchange.asked.next(), if !exchange.asked.is_empty() => Event::Answered(asked),
        };
        let Some(inner) = group.upgrade() else { return };
        match event {
            Event::Look => {
                next = clock.sleep(EVERY);
                exchange.ask(&inner);
                inner.follow_leadership().await;
                exchange.look(&inner).await;
            }
            Event::LeadershipChanged => {
                exchange.ask(&inner);
                inner.follow_leadership().await;
            }
            Event::Answered(asked) => {
                exchange.take_in(&inner, asked);
                inner.follow_leadership().await;
            }
        }
    }
    if let Some(inner) = group.upgrade() {
        exchange.write(&inner).await;
        exchange.written().await;
    }
}

impl Exchange {
    fn of(inner: &Inner) -> Self {
        Self {
            asked: FuturesUnordered::new(),
            asking: BTreeSet::new(),
            boot_id: boot_clock::boot_id(),
            dir: inner.config.data.clone(),
            looks: 0,
            writing: None,
            said: Said::default(),
        }
    }

    /// Asks every member that is not being asked.
    fn ask(&mut self, inner: &Inner) {
        let members = inner.raft.server_metrics().borrow_watched().membership_config.clone();
        let ids: BTreeSet<u64> = members.nodes().map(|(id, _)| *id).collect();
        inner.clocks.keeper().keep(&ids);
        for (id, node) in members.nodes().filter(|(id, _)| **id != inner.config.id) {
            if !self.asking.insert(*id) {
                continue;
            }
            let (peers, id, node) = (inner.peers.clone(), *id, node.clone());
            self.asked.push(Box::pin(async move {
                let sent = boot_clock::now();
                let answer = peers.exchange_clocks(id, &node, ANSWER).await;
                (id, sent, boot_clock::now(), answer)
            }));
        }
    }

    fn take_in(&mut self, inner: &Inner, (member, sent, received, answer): Asked) {
        self.asking.remove(&member);
        let leader = match *inner.leadership.borrow() {
            Leadership::Leader { .. } => None,
            Leadership::Follower { leader } => leader,
        };
        let mut keeper = inner.clocks.keeper();
        match answer {
            Ok(answer) => keeper.answered(member, reading(sent, received, &answer), leader),
            Err(error) => {
                debug!(member, %error, "no reading of its clocks");
                keeper.failed(member, received);
            }
        }
    }

    async fn look(&mut self, inner: &Inner) {
        let majority_ago = inner.majority_ago();
        let (offsets, right, sees_leader) = inner.at_this_moment(|keeper, at| {
            let offsets = keeper.look(at, majority_ago);
            let right = offsets.reference_ms.map(|reference| keeper.right(at, reference)).unwrap_or_default();
            (offsets, right, keeper.sees_leader(at.now))
        });
        inner.clocks.offsets.send_replace(offsets);
        self.say(inner, &offsets);
        inner.elections.set(Reason::WrongClock, offsets.is_off && sees_leader);
        let leads = inner.leading_term().is_some();
        if offsets.is_off && leads {
            let heir = inner.hand_over_for_clock(&right).await;
            if let Some(heir) = heir.filter(|_| !std::mem::replace(&mut self.said.hands_over, true)) {
                info!(heir, "leadership is handed over, for this broker's clock is wrong");
            }
        } else {
            self.said.hands_over = false;
        }
        self.looks += 1;
        if self.looks >= LOOKS_PER_WRITE {
            self.looks = 0;
            self.write(inner).await;
        }
    }

    /// One line for each change.
    fn say(&mut self, inner: &Inner, offsets: &Offsets) {
        let broker = inner.config.id;
        if let (Some(offset_ms), Some(majority_ms)) = (offsets.wall_ms, offsets.reference_ms)
            && self.said.wrong_clock != offsets.is_off
        {
            self.said.wrong_clock = offsets.is_off;
            let (clock, majority) =
                (date_and_time(majority_ms.saturating_add_signed(offset_ms)), date_and_time(majority_ms));
            if offsets.is_off {
                warn!(
                    broker, %clock, %majority, offset_ms,
                    "this broker's clock is wrong: more than {} s off the majority's; it does not lead while another can; \
                     set it, best with NTP",
                    MAX_WALL_OFFSET.as_secs()
                );
            } else {
                info!(broker, %clock, %majority, offset_ms, "this broker's clock is right again");
            }
        }
        let Some(offset_ms) = offsets.log_time_ms.filter(|_| inner.leading_term().is_some()) else {
            self.said.far_log_time = false;
            return;
        };
        if self.said.far_log_time != is_off(offset_ms) {
            self.said.far_log_time = is_off(offset_ms);
            if self.said.far_log_time {
                warn!(
                    offset_ms,
                    "log time is off the brokers' clocks and follows them by 36 s an hour; if those are right, see \
                     `comity raft rebase-time`"
                );
            } else {
                info!(offset_ms, "log time is near the brokers' clocks again");
            }
        }
    }

    /// Writes the clock file beside everything else. Where the disk is slow the next write is left out.
    async fn write(&mut self, inner: &Inner) {
        let Some(boot_id) = &self.boot_id else { return };
        if self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return;
        }
        let file = {
            let (now, keeper) = (boot_clock::now(), inner.clocks.keeper());
            ClockFile::of(boot_id, now, keeper.log_ms(now), keeper.led())
        };
        let (dir, failed) = (self.dir.clone(), Arc::clone(&self.said.write_failed));
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let written = file.write(&dir);
            let fails = written.is_err();
            if failed.swap(fails, Ordering::Relaxed) != fails
                && let Err(error) = written
            {
                warn!(%error, "the clock file cannot be written; after a restart of all brokers their clocks must do");
            }
        }));
    }

    async fn written(&mut self) {
        if let Some(writing) = self.writing.take() {
            // It cannot fail but by a panic, which is reported.
            let _ = writing.await;
        }
    }
}

fn reading(sent: Duration, received: Duration, answer: &ExchangeClocksResponse) -> Reading {
    let ago = answer.led_ago_ms.map(|ms| Led::Ago { ago: Duration::from_millis(ms), as_of: sent });
    Reading {
        sent,
        received,
        wall_ms: answer.wall_ms,
        log_ms: answer.log_clock_ms,
        led: ago.or(answer.led_log_clock_ms.map(Led::LogClock)),
        leads: answer.leads,
    }
}

/// A wall clock as people read it.
pub(crate) fn date_and_time(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| format!("{unix_ms} ms"), |time| time.to_string())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
