//! Whether this broker may stand for election.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tracing::info;

use crate::group::consensus::Raft;

/// Why a broker does not stand for election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// It may not vote: see [`Standing`](crate::group::members::standing::Standing).
    MayNotVote,
    /// Its wall clock is wrong, and another may lead.
    WrongClock,
}

/// Elections are on while no reason is held against them. A leader stays one all the same.
pub(crate) struct ElectionGate {
    raft: Raft,
    reasons: Mutex<BTreeSet<Reason>>,
}

impl ElectionGate {
    pub(crate) fn new(raft: Raft) -> Self {
        // Consensus was started with elections off, until it is known that this broker may vote.
        Self { raft, reasons: Mutex::new(BTreeSet::from([Reason::MayNotVote])) }
    }

    /// Holds `reason` against elections, or does not any more.
    pub(crate) fn set(&self, reason: Reason, holds: bool) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if holds { reasons.insert(reason) } else { reasons.remove(&reason) };
        if changed {
            info!(?reason, holds, stands = reasons.is_empty(), "standing for election");
            self.raft.runtime_config().elect(reasons.is_empty());
        }
    }

    /// Whether nothing is held against them.
    pub(crate) fn stands(&self) -> bool {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
