//! Replicates the log to one follower: a stream of appends, answered in order.
//!
//! ```text
//!   consensus ─▶ requests ─▶ window ─▶ wire ─▶ follower: append, fsync
//!   consensus ◀─ results  ◀─ deadline ◀─ wire ◀─────────┘
//! ```
//!
//! The window bounds unanswered appends: the next one is sent while the follower syncs the previous; waiting entries
//! share one message and one sync.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comity_proto::raft::v1::Frame;
use futures::{Stream, StreamExt as _};
use openraft::OptionalSend;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendError, StreamAppendResult};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::{Status, Streaming};

use crate::replication::types::{LogId, TypeConfig};
use crate::transport::frame;

/// Maximum unanswered appends.
pub(crate) const WINDOW: usize = 2;

/// Shared by both directions of one stream.
#[derive(Clone)]
pub(super) struct AppendExchange {
    inner: Arc<AppendExchangeInner>,
}

struct AppendExchangeInner {
    window: Semaphore,
    /// Unanswered appends.
    sent: Mutex<VecDeque<Sent>>,
    /// Why the requests ended early, if they did.
    failed: Mutex<Option<Status>>,
    /// Longest time between an append and its answer.
    limit: Duration,
}

/// An append on its way.
struct Sent {
    at: Instant,
    /// The entry before those that it carries.
    prev: Option<LogId>,
    /// Last entry that the follower has after this append.
    last: Option<LogId>,
}

impl Sent {
    fn now(request: &AppendEntriesRequest<TypeConfig>) -> Self {
        let prev = request.prev_log_id;
        Self { at: Instant::now(), prev, last: request.entries.last().map(|entry| entry.log_id).or(prev) }
    }

    /// Converts the answer to the result for consensus.
    fn answered(self, answer: AppendEntriesResponse<TypeConfig>) -> Result<StreamAppendResult<TypeConfig>, Status> {
        match (answer, self.prev) {
            (AppendEntriesResponse::Success, _) => Ok(Ok(self.last)),
            (AppendEntriesResponse::PartialSuccess(matched), _) => Ok(Ok(matched)),
            (AppendEntriesResponse::Conflict, Some(prev)) => Ok(Err(StreamAppendError::Conflict(prev))),
            (AppendEntriesResponse::Conflict, None) => {
                Err(Status::internal("nothing comes before entry 0 to conflict"))
            }
            (AppendEntriesResponse::HigherVote(vote), _) => Ok(Err(StreamAppendError::HigherVote(vote))),
        }
    }
}

impl AppendExchange {
    pub(super) fn new(limit: Duration) -> Self {
        let (sent, failed) = (Mutex::default(), Mutex::default());
        Self { inner: Arc::new(AppendExchangeInner { window: Semaphore::new(WINDOW), sent, failed, limit }) }
    }

    fn sent(&self) -> MutexGuard<'_, VecDeque<Sent>> {
        self.inner.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> MutexGuard<'_, Option<Status>> {
        self.inner.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests in order. Ends if one cannot be sent; [`AppendExchange::next`] then returns the reason.
    pub(super) fn outgoing<S>(&self, requests: S) -> impl Stream<Item = Frame> + Send + 'static
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        futures::stream::unfold((self.clone(), requests), |(exchange, mut requests)| async move {
            exchange.inner.window.acquire().await.ok()?.forget();
            let request = requests.next().await?;
            match frame::encode_append(&request) {
                Ok(frame) => {
                    exchange.sent().push_back(Sent::now(&request));
                    Some((frame, (exchange, requests)))
                }
                Err(status) => {
                    *exchange.failed() = Some(status);
                    None
                }
            }
        })
    }

    /// The next answer; `None` once the follower has ended the stream in good order.
    ///
    /// # Errors
    /// The follower's status; `DEADLINE_EXCEEDED` where an append was not answered in time.
    pub(super) async fn next(
        &self,
        answers: &mut Streaming<Frame>,
    ) -> Option<Result<StreamAppendResult<TypeConfig>, Status>> {
        loop {
            let limit = self.inner.limit;
            let until = self.sent().front().map_or_else(Instant::now, |sent| sent.at) + limit;
            match tokio::time::timeout_at(until, answers.message()).await {
                Ok(Ok(Some(frame))) => {
                    let sent = self.sent().pop_front();
                    self.inner.window.add_permits(1);
                    let sent = sent.ok_or_else(|| Status::internal("an answer to nothing"));
                    return Some(sent.and_then(|sent| sent.answered(frame::decode(&frame.payload)?)));
                }
                Ok(Ok(None)) => return self.failed().take().map(Err),
                Ok(Err(status)) => return Some(Err(self.failed().take().unwrap_or(status))),
                // Nothing was due: the log did not grow, or the append was sent while this waited.
                Err(_) if self.sent().front().is_none_or(|sent| sent.at.elapsed() < limit) => {}
                Err(_) => {
                    let text = format!("no answer within {} ms", limit.as_millis());
                    return Some(Err(Status::deadline_exceeded(text)));
                }
            }
        }
    }
}
