//! Whether this broker may stand for election.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tracing::info;

use super::raft_types::Raft;

/// Why a broker does not stand for election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// It may not vote: see [`Standing`](super::standing::Standing).
    MayNotVote,
    /// Its wall clock is wrong, and another may lead.
    WrongClock,
}

/// Elections are on while no reason is held against them. A leader stays one all the same.
pub(super) struct ElectionGate {
    raft: Raft,
    reasons: Mutex<BTreeSet<Reason>>,
}

impl ElectionGate {
    pub(super) fn new(raft: Raft) -> Self {
        // Consensus was started with elections off, until it is known that this broker may vote.
        Self { raft, reasons: Mutex::new(BTreeSet::from([Reason::MayNotVote])) }
    }

    /// Holds `reason` against elections, or does not any more.
    pub(super) fn set(&self, reason: Reason, holds: bool) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if holds { reasons.insert(reason) } else { reasons.remove(&reason) };
        if changed {
            info!(?reason, holds, stands = reasons.is_empty(), "standing for election");
            self.raft.runtime_config().elect(reasons.is_empty());
        }
    }

    /// Whether nothing is held against them.
    pub(super) fn stands(&self) -> bool {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
