//! Errors of a group.

use std::time::Duration;

use thiserror::Error;

use crate::storage::StorageError;

/// The group cannot start, or a change of its members failed.
#[derive(Debug, Error)]
pub enum GroupError {
    /// An invalid setting.
    #[error("{0}")]
    Config(String),
    /// The disk failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Consensus refused or stopped.
    #[error("consensus failed: {0}")]
    Raft(String),
    /// An invalid list of members.
    #[error("members are refused: {0}")]
    Members(String),
    /// The replicated state refused it.
    #[error(transparent)]
    Refused(comity_core::Refusal),
    /// This broker does not lead; retry at the leader.
    #[error("this broker does not lead its group")]
    NotLeader,
    /// The group did not answer.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// The group did not answer; tells whether the command may have been carried out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// No leader; nothing was carried out.
    #[error(
        "the broker group has no leader that broker {broker} can reach; nothing was carried out; try again once a \
        majority of the brokers is up"
    )]
    NoLeader {
        /// The broker asked.
        broker: u64,
    },
    /// Too busy; nothing was carried out.
    #[error("the broker group is busy: no place in the queue within {} ms; nothing was carried out; try again \
        later", .waited.as_millis())]
    Busy {
        /// Time waited.
        waited: Duration,
    },
    /// No answer.
    #[error(
        "no answer from the broker group ({reason}); the command may or may not have been carried out; look, or \
        repeat it with the same idempotency key"
    )]
    Unknown {
        /// Last error.
        reason: String,
    },
    /// No answer to a call that is safe to repeat.
    #[error(
        "no answer from the broker group ({reason}); the command may or may not have been carried out; repeat it with \
        the same idempotency key, at another broker"
    )]
    Repeatable {
        /// Last error.
        reason: String,
    },
    /// A read timed out.
    #[error("the read was not confirmed by the broker group within {} ms; try again, or accept a stale \
        answer", .waited.as_millis())]
    ReadTimeout {
        /// Time waited.
        waited: Duration,
    },
    /// This broker stopped.
    #[error("consensus on broker {broker} has stopped: {reason}; see its log, and restart it")]
    Stopped {
        /// The broker.
        broker: u64,
        /// Why it stopped.
        reason: String,
    },
}

impl Unavailable {
    /// Whether repeating the call at another broker is safe.
    pub const fn may_be_repeated(&self) -> bool {
        matches!(self, Self::NoLeader { .. } | Self::Busy { .. } | Self::Repeatable { .. })
    }

    /// Whether the command may have been carried out.
    pub const fn may_have_been_carried_out(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Repeatable { .. } | Self::Stopped { .. })
    }
}
