//! Asks the other members for their clocks, and checks this broker's wall clock against a majority's.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use comity_proto::raft::v1::ExchangeClocksResponse;
use comity_runtime::clock::{Clock, Sleep};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use openraft::async_runtime::WatchReceiver as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::group::clocks::boot_clock;
use crate::group::clocks::clock_file::ClockFile;
use crate::group::clocks::member_clocks::{Led, MAX_WALL_OFFSET, Reading, is_off, offset};
use crate::group::clocks::timekeeper::Offsets;
use crate::group::elections::election_gate::Reason;
use crate::group::{Inner, Leadership};
use crate::transport::CallError;

/// Interval of queries to each member.
const CLOCK_QUERY_INTERVAL: Duration = Duration::from_millis(500);
/// Timeout of an answer: a longer round trip makes a reading too imprecise.
const CLOCK_QUERY_TIMEOUT: Duration = Duration::from_millis(450);
/// Checks between writes of the clock file.
const LOOKS_PER_WRITE: u32 = 2;

type Asked = (u64, Duration, Duration, Result<ExchangeClocksResponse, CallError>);

/// State of the exchange task.
struct ClockExchange {
    asked: FuturesUnordered<BoxFuture<'static, Asked>>,
    asking: BTreeSet<u64>,
    boot_id: Option<String>,
    dir: PathBuf,
    looks: u32,
    writing: Option<JoinHandle<()>>,
    /// Conditions in the last log message, so that each change is logged once.
    reported: Reported,
}

#[derive(Default)]
struct Reported {
    wrong_clock: bool,
    far_log_time: bool,
    hands_over: bool,
    write_failed: Arc<AtomicBool>,
}

enum ExchangeEvent {
    Look,
    LeadershipChanged,
    Answered(Asked),
}

/// Runs until the group stops or its last handle is gone.
pub(crate) async fn run(group: Weak<Inner>, clock: Arc<dyn Clock>, stop: CancellationToken) {
    let Some(mut exchange) = group.upgrade().map(|inner| ClockExchange::of(&inner)) else { return };
    let Some(mut leadership) = group.upgrade().map(|inner| inner.leadership.clone()) else { return };
    if let Some(inner) = group.upgrade() {
        warn_of_far_log_time(&inner);
    }
    let mut next: Sleep = clock.sleep(Duration::ZERO);
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => break,
            changed = leadership.changed() => match changed {
                Ok(()) => ExchangeEvent::LeadershipChanged,
                Err(_) => break,
            },
            () = &mut next => ExchangeEvent::Look,
            Some(asked) = exchange.asked.next(), if !exchange.asked.is_empty() => ExchangeEvent::Answered(asked),
        };
        let Some(inner) = group.upgrade() else { return };
        match event {
            ExchangeEvent::Look => {
                next = clock.sleep(CLOCK_QUERY_INTERVAL);
                exchange.ask(&inner);
                inner.follow_leadership().await;
                exchange.look(&inner).await;
            }
            ExchangeEvent::LeadershipChanged => {
                exchange.ask(&inner);
                inner.follow_leadership().await;
            }
            ExchangeEvent::Answered(asked) => {
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

/// A broker that takes a wrong time for log time answers nobody, and then no other broker's clock corrects it.
fn warn_of_far_log_time(inner: &Inner) {
    let read = inner.at_this_moment(|keeper, at| {
        let log_ms = keeper.log_ms(at.now)?;
        Some((log_ms.saturating_add_signed(at.shift_ms), at.wall_ms))
    });
    let Some((log_ms, wall_ms)) = read.filter(|(log_ms, wall_ms)| is_off(offset(*log_ms, *wall_ms))) else { return };
    let (broker, log_time, clock) = (inner.config.id, date_and_time(log_ms), date_and_time(wall_ms));
    warn!(
        broker, %log_time, %clock,
        "log time, as this broker kept it in its file group/clock, is far from its clock; if the clock is right, see \
         `comity raft rebase-time`, or stop the broker, remove the file and start it again"
    );
}

impl ClockExchange {
    fn of(inner: &Inner) -> Self {
        Self {
            asked: FuturesUnordered::new(),
            asking: BTreeSet::new(),
            boot_id: boot_clock::boot_id(),
            dir: inner.config.data.clone(),
            looks: 0,
            writing: None,
            reported: Reported::default(),
        }
    }

    /// Queries every member without a query in flight.
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
                let answer = peers.exchange_clocks(id, &node, CLOCK_QUERY_TIMEOUT).await;
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
        self.log_changes(inner, &offsets);
        inner.elections.set(Reason::WrongClock, offsets.is_off && sees_leader);
        let leads = inner.leading_term().is_some();
        if offsets.is_off && leads {
            let successor = inner.hand_over_for_clock(&right).await;
            if let Some(successor) = successor.filter(|_| !std::mem::replace(&mut self.reported.hands_over, true)) {
                info!(successor, "leadership is handed over, for this broker's clock is wrong");
            }
        } else {
            self.reported.hands_over = false;
        }
        self.looks += 1;
        if self.looks >= LOOKS_PER_WRITE {
            self.looks = 0;
            self.write(inner).await;
        }
    }

    /// Logs each change once.
    fn log_changes(&mut self, inner: &Inner, offsets: &Offsets) {
        let broker = inner.config.id;
        if let (Some(offset_ms), Some(majority_ms)) = (offsets.wall_ms, offsets.reference_ms)
            && self.reported.wrong_clock != offsets.is_off
        {
            self.reported.wrong_clock = offsets.is_off;
            let (clock, majority) =
                (date_and_time(majority_ms.saturating_add_signed(offset_ms)), date_and_time(majority_ms));
            if offsets.is_off {
                warn!(
                    broker, %clock, %majority, offset_ms,
                    "this broker's clock is wrong: more than {} s off the majority's; it does not lead while another \
                     can; set it, best with NTP",
                    MAX_WALL_OFFSET.as_secs()
                );
            } else {
                info!(broker, %clock, %majority, offset_ms, "this broker's clock is right again");
            }
        }
        let Some(offset_ms) = offsets.log_time_ms.filter(|_| inner.leading_term().is_some()) else {
            self.reported.far_log_time = false;
            return;
        };
        if self.reported.far_log_time != is_off(offset_ms) {
            self.reported.far_log_time = is_off(offset_ms);
            if self.reported.far_log_time {
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

    /// Writes the clock file in the background; skips a write while the previous one runs.
    async fn write(&mut self, inner: &Inner) {
        let Some(boot_id) = &self.boot_id else { return };
        if self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return;
        }
        let file = {
            let (now, keeper) = (boot_clock::now(), inner.clocks.keeper());
            ClockFile::of(boot_id, now, keeper.log_ms(now), keeper.led())
        };
        let (dir, failed) = (self.dir.clone(), Arc::clone(&self.reported.write_failed));
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
            // Fails only by a panic, which is reported.
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

/// RFC 3339 text of a Unix time.
pub(crate) fn date_and_time(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map_or_else(|| format!("{unix_ms} ms"), |time| time.to_string())
}
