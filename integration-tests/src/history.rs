//! What clients did and saw, and whether one order of it exists that explains all: linearizability (Herlihy and Wing,
//! 1990).
//!
//! ```text
//!   clients ─ call ─▶ brokers ─ answer or none ─▶ History ─┬─ per request: does an order exist? (Wing, Gong, Lowe)
//!                                                         ├─ per revision: never back in time
//!                                                         └─ per member, in the end: is all there that was acknowledged?
//! ```
//!
//! Each request is an object of its own: a history is linearizable exactly if that of each object is (locality), and
//! small histories are checked in no time. A list is a read of every request. What locality leaves out of a list, that
//! it shows all its requests at one moment, the order of revisions covers.

mod check;
mod model;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use check::{Verdict, account, check};

/// One call of a client. Times are since the history began.
#[derive(Clone, Debug)]
pub struct Operation {
    /// When its first try began.
    pub call: Duration,
    /// When it was answered; `None`: nobody knows whether it took effect, and it still may.
    pub answer: Option<Duration>,
    /// What was called, and what was seen.
    pub what: What,
    /// The revision that its answer names.
    pub revision: Option<u64>,
}

/// What a call does. Requests have the numbers that clients gave them.
#[derive(Clone, Debug)]
pub enum What {
    /// Submits the request, once.
    Submit(u64),
    /// Cancels it, once.
    Cancel(u64),
    /// Reads it by its id.
    Read(u64, Saw),
    /// Lists all that wait, of those below [`LISTED_BELOW`].
    List(BTreeSet<u64>),
}

/// Requests from this number on are in no list: they are kept until the end, more than one answer has room for.
pub const LISTED_BELOW: u64 = 1 << 32;

/// What a read of one request shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saw {
    /// It waits.
    Waiting,
    /// It was cancelled.
    Cancelled,
    /// There is no such request: it is not known yet, or was cancelled and forgotten.
    Nothing,
    /// It ended, and no client cancelled it.
    EndedByItself,
}

/// A history in the making.
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
    /// The time of this history.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Notes an operation that is over: answered now, or given up.
    pub fn note(&self, call: Duration, answered: bool, what: What, revision: Option<u64>) {
        let answer = answered.then(|| self.now());
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.push(Operation { call, answer, what, revision });
    }

    /// All that was noted until now.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
