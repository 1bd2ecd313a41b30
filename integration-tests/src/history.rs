//! Records the operations of clients and checks their history for linearizability (Herlihy and Wing, 1990).
//!
//! ```text
//!   clients ─ call ─▶ brokers ─ answer or none ─▶ History ─┬─ per request: does an order exist? (Wing, Gong, Lowe)
//!                                                         ├─ per revision: never back in time
//!                                                         └─ per member, at the end: no acknowledged write lost?
//! ```
//!
//! Each request is its own object: a history is linearizable exactly if the history of each object is (locality), and
//! small histories are fast to check. A list counts as a read of every request. That a list shows all its requests at
//! one moment is checked by the order of revisions.

mod check;
mod model;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use check::{Verdict, account, check};

/// One call of a client; times are relative to the start of the history.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Start of its first try.
    pub call: Duration,
    /// Time of the answer. Without one, the call may have taken effect or may still do so.
    pub answer: Option<Duration>,
    /// The call and its result.
    pub what: Call,
    /// The revision in its answer.
    pub revision: Option<u64>,
}

/// The kinds of calls; requests are identified by the numbers of the clients.
#[derive(Clone, Debug)]
pub enum Call {
    /// Submits the request, once.
    Submit(u64),
    /// Cancels it, once.
    Cancel(u64),
    /// Reads it by its id.
    Read(u64, Observation),
    /// Lists the queued requests with numbers below [`LISTED_BELOW`].
    List(BTreeSet<u64>),
}

/// Lists omit requests from this number on: clients keep them until the end, and they exceed one page.
pub const LISTED_BELOW: u64 = 1 << 32;

/// Maximum number of violations that are recorded with a description.
pub(crate) const MAX_VIOLATIONS: usize = 20;

/// The result of reading one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// It is queued.
    Waiting,
    /// It was cancelled.
    Cancelled,
    /// It does not exist: not submitted yet, or cancelled and forgotten.
    Nothing,
    /// It ended although no client cancelled it.
    EndedByItself,
}

/// Collects the operations of concurrent clients.
#[derive(Debug)]
pub struct History {
    began: Instant,
    operations: Mutex<Vec<Operation>>,
}

impl Default for History {
    fn default() -> Self {
        Self { began: Instant::now(), operations: Mutex::default() }
    }
}

impl History {
    /// Time since the start of the history.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Records an operation that was answered just now.
    pub fn answered(&self, call: Duration, what: Call, revision: Option<u64>) {
        self.record(Operation { call, answer: Some(self.now()), what, revision });
    }

    /// Records an operation that got no answer.
    pub fn unanswered(&self, call: Duration, what: Call) {
        self.record(Operation { call, answer: None, what, revision: None });
    }

    fn record(&self, operation: Operation) {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).push(operation);
    }

    /// All operations recorded so far.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
