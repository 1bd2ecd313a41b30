//! Whether this broker may stand for election.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tracing::info;

use crate::group::consensus::Raft;

/// Why a broker does not stand for election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reason {
    /// It may not vote: see [`Eligibility`](crate::eligibility::Eligibility).
    MayNotVote,
    /// Its wall clock is wrong, and another may lead.
    WrongClock,
}

/// Enables elections while no [`Reason`] is set. Does not affect a current leader.
pub(crate) struct ElectionGate {
    raft: Raft,
    reasons: Mutex<BTreeSet<Reason>>,
}

impl ElectionGate {
    pub(crate) fn new(raft: Raft) -> Self {
        // Consensus was started with elections off, until it is known that this broker may vote.
        Self { raft, reasons: Mutex::new(BTreeSet::from([Reason::MayNotVote])) }
    }

    /// Adds or removes a reason not to stand for election.
    pub(crate) fn set(&self, reason: Reason, holds: bool) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if holds { reasons.insert(reason) } else { reasons.remove(&reason) };
        if changed {
            let may_lead = reasons.is_empty();
            match holds {
                true => info!(?reason, "this broker does not stand for election"),
                false => info!(?reason, may_lead, "a reason not to stand for election is gone"),
            }
            self.raft.runtime_config().elect(reasons.is_empty());
        }
    }

    /// Whether this broker may stand for election.
    pub(crate) fn stands(&self) -> bool {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
