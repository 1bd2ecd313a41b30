//! Whether this broker stands for election: it does unless something bars it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::raft_types::Raft;

/// What keeps a broker from standing for election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bar {
    /// It may not vote: see [`Standing`](super::standing::Standing).
    MayNotVote,
}

/// Clones share it.
#[derive(Clone)]
pub(super) struct ElectionGate(Arc<Mutex<BTreeSet<Bar>>>);

impl ElectionGate {
    /// Barred: consensus is started with elections off.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(BTreeSet::from([Bar::MayNotVote]))))
    }

    /// Sets or lifts one bar.
    pub(super) fn set(&self, raft: &Raft, bar: Bar, barred: bool) {
        let mut bars = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if barred { bars.insert(bar) } else { bars.remove(&bar) };
        if changed {
            raft.runtime_config().elect(bars.is_empty());
        }
    }
}
