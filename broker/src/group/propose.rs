//! Appends commands to the log, or forwards them to the leader.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use comity_core::Actor;
use comity_core::refusal::Code;
use comity_core::reply::Applied;
use comity_core::{Command, LogEnvelope, Refusal, Timestamp, limits};
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ClientWriteError, RaftError};

use crate::group::group_error::Unavailable;
use crate::group::{Group, Inner, Leadership};
use crate::replication::command_codec;
use crate::replication::proposal::Proposal;
use crate::replication::types::Proposed;
use crate::transport::{ForwardReply, ForwardRequest};

/// Poll interval while no leadership change is notified.
const LEADERSHIP_POLL_INTERVAL: Duration = Duration::from_millis(25);

/// Grace for the answer of a replaced leader.
const REPLACED_LEADER_GRACE: Duration = Duration::from_millis(300);

/// Outcome of one attempt.
pub(crate) enum Attempt {
    /// Appended and applied.
    Applied(Applied),
    /// Not in the log, and never will be: another attempt is safe.
    NotAppended,
    /// May be in the log, now or later.
    Unknown(String),
    /// Consensus on this broker has stopped.
    Stopped(String),
}

impl Group {
    /// Commits a command and returns once the leader has applied it; followers forward it. The reply tells whether the
    /// command was carried out or refused.
    ///
    /// # Errors
    /// [`Unavailable`] after the deadline. Until then, retries while nothing was appended, or if an idempotency key
    /// makes a second append harmless.
    pub async fn propose(&self, proposal: Proposal) -> Result<Applied, Unavailable> {
        let inner = &self.inner;
        let deadline = Deadline::within(inner.config.deadline);
        let _permit = tokio::time::timeout(deadline.left(), inner.in_flight.acquire())
            .await
            .map_err(|_| Unavailable::Busy { waited: deadline.whole })?;
        let mut unknown = None;
        while deadline.left() > Duration::ZERO && !inner.is_out_of_patience(&deadline) {
            if let Some(reason) = inner.stop_reason() {
                return Err(Unavailable::Stopped { broker: inner.config.id, reason });
            }
            let leadership = *inner.leadership.borrow();
            let attempt = match leadership {
                Leadership::Leader { .. } => inner.append(proposal.clone(), deadline.left()).await,
                Leadership::Follower { leader: Some(leader) } => inner.forward(leader, &proposal, &deadline).await,
                Leadership::Follower { leader: None } => Attempt::NotAppended,
            };
            match attempt {
                Attempt::Applied(applied) => return Ok(applied),
                Attempt::NotAppended => {}
                Attempt::Unknown(reason) if proposal.idempotency.is_some() => unknown = Some(reason),
                Attempt::Unknown(reason) => return Err(Unavailable::Unknown { reason }),
                Attempt::Stopped(reason) => return Err(Unavailable::Stopped { broker: inner.config.id, reason }),
            }
            inner.leadership_may_change(leadership, deadline.left()).await;
        }
        Err(match unknown {
            Some(reason) => Unavailable::Repeatable { reason },
            None => Unavailable::NoLeader { broker: inner.config.id },
        })
    }
}

impl Inner {
    /// Why consensus has stopped here; `None` while it runs.
    pub(crate) fn stop_reason(&self) -> Option<String> {
        if self.stop.is_cancelled() {
            return Some("it is being shut down".to_owned());
        }
        if let Some(halt) = self.eligibility.halted() {
            return Some(halt.reason().to_owned());
        }
        self.raft.metrics().borrow_watched().running_state.as_ref().err().map(ToString::to_string)
    }

    /// Appends as the leader.
    pub(crate) async fn append(&self, proposal: Proposal, timeout: Duration) -> Attempt {
        let of_group = matches!(proposal.actor, Actor::Leader(_));
        if self.stop_reason().is_some() || (!of_group && self.is_founding()) {
            return Attempt::NotAppended;
        }
        let deadline = Deadline::within(timeout);
        let Some((time, tenure)) = self.stamp(timeout).await else { return Attempt::NotAppended };
        let envelope: LogEnvelope = proposal.at(time);
        let begins_term = matches!(envelope.command, Command::BeginTerm(_));
        let bytes = match command_codec::encode_command(&envelope) {
            Ok(bytes) if bytes.len() <= limits::MAX_COMMAND_BYTES => bytes,
            written => match (self.too_large(&envelope.command), written) {
                (Some(applied), _) => return Attempt::Applied(applied),
                (None, Ok(bytes)) => bytes,
                (None, Err(error)) => return Attempt::Unknown(error.to_string()),
            },
        };
        let write = self.raft.client_write(Proposed::new(envelope, bytes));
        let answer = tokio::select! {
            answer = tokio::time::timeout(deadline.left(), write) => answer,
            () = self.leaderless_for(self.config.patience) => {
                return Attempt::Unknown("this broker lost its majority before one had stored it".to_owned());
            }
        };
        match answer {
            Err(_) => {
                Attempt::Unknown(format!("no majority of the brokers stored it within {} ms", timeout.as_millis()))
            }
            Ok(Ok(response)) if begins_term && response.data.is_some() => {
                self.clocks.term_began(tenure);
                response.data.map_or(Attempt::NotAppended, Attempt::Applied)
            }
            Ok(Ok(response)) => match response.data {
                Some(applied) => Attempt::Applied(applied),
                None => Attempt::Unknown("the log answered with another entry".to_owned()),
            },
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => Attempt::NotAppended,
            Ok(Err(RaftError::APIError(error))) => Attempt::Unknown(error.to_string()),
            Ok(Err(RaftError::Fatal(error))) => Attempt::Stopped(error.to_string()),
        }
    }

    /// Whether the group is not ready for users: it lacks founding members, or its first term has not begun, before which
    /// the audit log has no key for nonces.
    fn is_founding(&self) -> bool {
        self.forming.load(Ordering::Acquire) || self.replica.read(|it| it.state.term_began) == Timestamp::default()
    }

    async fn forward(&self, leader: u64, proposal: &Proposal, deadline: &Deadline) -> Attempt {
        let Some(node) = self.node_of(leader) else { return Attempt::NotAppended };
        if let Some(applied) = self.too_large(&proposal.command) {
            return Attempt::Applied(applied);
        }
        let left = deadline.left();
        let message = ForwardRequest::Propose {
            proposal: proposal.clone(),
            // The leader gives up first, so that its answer still arrives.
            timeout_ms: u64::try_from((left * 9 / 10).as_millis()).unwrap_or(u64::MAX),
        };
        let answer = tokio::select! {
            answer = self.peers.forward(leader, &node, &message, left) => answer,
            () = self.led_by_another(leader) => {
                return Attempt::Unknown(format!("broker {leader} did not answer and leads no more"));
            }
            () = self.leaderless_for(self.config.patience) => {
                return Attempt::Unknown(format!("broker {leader} did not answer and is not heard any more"));
            }
        };
        match answer {
            Ok(ForwardReply::Applied(applied)) => Attempt::Applied(applied),
            Ok(ForwardReply::NotAppended) => Attempt::NotAppended,
            Ok(ForwardReply::Unknown(reason)) => Attempt::Unknown(reason),
            Ok(ForwardReply::MembersChanged | ForwardReply::MembersRefused(_) | ForwardReply::Refused(_)) => {
                Attempt::Unknown(format!("broker {leader} answered another question"))
            }
            Err(error) if error.may_have_arrived => Attempt::Unknown(error.to_string()),
            Err(_) => Attempt::NotAppended,
        }
    }

    /// Waits for a leadership change, at most for `LEADERSHIP_POLL_INTERVAL` or `at_most`.
    pub(crate) async fn leadership_may_change(&self, seen: Leadership, at_most: Duration) {
        let mut leadership = self.leadership.clone();
        let changed = leadership.wait_for(|now| *now != seen);
        // The caller checks the leadership again, whether it changed or not.
        let _ = tokio::time::timeout(LEADERSHIP_POLL_INTERVAL.min(at_most), changed).await;
    }

    /// Whether a call has waited for a leader for `patience`: another broker may know one.
    pub(crate) fn is_out_of_patience(&self, deadline: &Deadline) -> bool {
        let since = *self.leaderless.borrow();
        since.is_some_and(|since| since.max(deadline.began).elapsed() >= self.config.patience)
    }

    /// Waits until another broker leads, plus a grace period for the answer of `leader`.
    pub(crate) async fn led_by_another(&self, leader: u64) {
        let mut leadership = self.leadership.clone();
        let another = leadership.wait_for(|now| match now {
            Leadership::Leader { .. } => true,
            Leadership::Follower { leader: next } => next.is_some_and(|next| next != leader),
        });
        // The watch ends only with the group.
        let _ = another.await;
        tokio::time::sleep(REPLACED_LEADER_GRACE).await;
    }

    /// Waits until no leader was known for `limit`.
    pub(crate) async fn leaderless_for(&self, limit: Duration) {
        let mut leaderless = self.leaderless.clone();
        loop {
            let since = *leaderless.borrow_and_update();
            let left = since.map_or(Duration::MAX, |since| limit.saturating_sub(since.elapsed()));
            tokio::select! {
                // The watch ends only with the group, and then nobody leads here again.
                changed = leaderless.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(left), if since.is_some() => return,
            }
        }
    }

    /// Refuses a command over the size limit, before it is stored.
    fn too_large(&self, command: &Command) -> Option<Applied> {
        let mut length = Length(0);
        let bytes = match serde_json::to_writer(&mut length, command) {
            Ok(()) => length.0,
            Err(_) => usize::MAX,
        };
        (bytes > limits::MAX_COMMAND_BYTES).then(|| Applied {
            reply: Err(Refusal::new(
                Code::LimitReached,
                format!("the command has {bytes} bytes, allowed are {}", limits::MAX_COMMAND_BYTES),
                "send less at once",
            )),
            revision: *self.replica.revision().borrow(),
            changes: Vec::new(),
            audit: Vec::new(),
        })
    }
}

/// A writer that only counts bytes.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Deadline of a caller's answer.
pub(crate) struct Deadline {
    began: Instant,
    end: Instant,
    pub(crate) whole: Duration,
}

impl Deadline {
    pub(crate) fn within(whole: Duration) -> Self {
        let began = Instant::now();
        Self { began, end: began + whole, whole }
    }

    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}
