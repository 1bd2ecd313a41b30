//! What can go wrong with a group.

use std::time::Duration;

use thiserror::Error;

use crate::storage::StorageError;

/// The group cannot start, or a change of its members was not made.
#[derive(Debug, Error)]
pub enum GroupError {
    /// A setting cannot be.
    #[error("{0}")]
    Config(String),
    /// The disk.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Consensus refused or stopped.
    #[error("consensus failed: {0}")]
    Raft(String),
    /// A list of members that cannot be.
    #[error("members are refused: {0}")]
    Members(String),
    /// The group's records say no.
    #[error(transparent)]
    Refused(comity_core::Refusal),
    /// This broker does not lead, or not any more; another may be asked.
    #[error("this broker does not lead its group")]
    NotLeader,
    /// Nobody is there to do it.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

/// The group did not answer. Says whether the command may have been carried out all the same.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// No leader; nothing was carried out.
    #[error(
        "the broker group has no leader that broker {broker} can reach; nothing was carried out; try again once a majority of the brokers is up"
    )]
    NoLeader {
        /// Who says so.
        broker: u64,
    },
    /// Too busy; nothing was carried out.
    #[error("the broker group is busy: no place in the queue within {} ms; nothing was carried out; try again later", .waited.as_millis())]
    Busy {
        /// How long.
        waited: Duration,
    },
    /// No answer.
    #[error(
        "no answer from the broker group ({reason}); the command may or may not have been carried out; look, or repeat it with the same idempotency key"
    )]
    Unknown {
        /// What happened.
        reason: String,
    },
    /// No answer, to a call that may be repeated.
    #[error(
        "no answer from the broker group ({reason}); the command may or may not have been carried out; repeat it with the same idempotency key, at another broker"
    )]
    Repeatable {
        /// What happened.
        reason: String,
    },
    /// A read that cannot be answered in time.
    #[error("the read was not confirmed by the broker group within {} ms; try again, or accept a stale answer", .waited.as_millis())]
    ReadTimeout {
        /// How long.
        waited: Duration,
    },
    /// This broker stopped.
    #[error("consensus on broker {broker} has stopped: {reason}; see its log, and restart it")]
    Stopped {
        /// Which.
        broker: u64,
        /// Why.
        reason: String,
    },
}

impl Unavailable {
    /// Whether the same call may be made at another broker without harm.
    pub const fn may_be_repeated(&self) -> bool {
        matches!(self, Self::NoLeader { .. } | Self::Busy { .. } | Self::Repeatable { .. })
    }

    /// Whether the command may have been carried out.
    pub const fn may_have_been_carried_out(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Repeatable { .. } | Self::Stopped { .. })
    }
}
