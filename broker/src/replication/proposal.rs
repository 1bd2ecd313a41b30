//! What somebody wants to have in the log.

use comity_core::log::{Actor, Idempotency, LOG_FORMAT};
use comity_core::{Command, LogEnvelope, Timestamp};
use serde::{Deserialize, Serialize};

/// A command, without the time: the leader stamps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Proposal {
    /// Who wants it.
    pub actor: Actor,
    /// What.
    pub command: Command,
    /// Makes a repeated call harmless, and lets the group itself try again where it is not known what became of it.
    pub idempotency: Option<Idempotency>,
    /// W3C traceparent; empty if none.
    pub traceparent: String,
}

impl Proposal {
    /// A proposal of the leader task of broker `id`.
    pub fn of_leader(id: u64, command: Command) -> Self {
        Self { actor: Actor::Leader(id), command, idempotency: None, traceparent: String::new() }
    }

    pub(crate) fn at(self, time: Timestamp) -> LogEnvelope {
        LogEnvelope {
            format: LOG_FORMAT,
            actor: self.actor,
            time,
            traceparent: self.traceparent,
            idempotency: self.idempotency,
            command: self.command,
        }
    }
}
