//! Proposals: commands before the leader stamps them.

use comity_audit::NonceKey;
use comity_core::Actor;
use comity_core::command::BeginTerm;
use comity_core::log::LOG_FORMAT;
use comity_core::reply::Idempotency;
use comity_core::{Command, LogEnvelope, Millis, Timestamp};
use comity_runtime::{Entropy as _, SystemEntropy};
use serde::{Deserialize, Serialize};

/// A command without its time, which the leader stamps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Proposal {
    /// Who proposes it.
    pub actor: Actor,
    /// Generation of the certificate with which the actor called; 0 for leader tasks.
    pub generation: u64,
    /// The command.
    pub command: Command,
    /// Makes repeated calls harmless; also lets the group retry after an unknown outcome.
    pub idempotency: Option<Idempotency>,
    /// W3C traceparent; empty if none.
    pub traceparent: String,
}

impl Proposal {
    /// A proposal of the leader task of broker `id`.
    pub fn of_leader(id: u64, command: Command) -> Self {
        Self { actor: Actor::Leader(id), generation: 0, command, idempotency: None, traceparent: String::new() }
    }

    /// The begin of a term of broker `id` after an outage, with a new key for nonces.
    pub(crate) fn begins_term(id: u64, outage: Millis) -> Self {
        let mut nonce_key = [0; NonceKey::BYTES];
        SystemEntropy.fill(&mut nonce_key);
        let nonce_key = NonceKey::of_bytes(nonce_key);
        Self::of_leader(id, Command::BeginTerm(BeginTerm { broker: id, outage, nonce_key }))
    }

    /// The log entry, stamped with `time`.
    pub(crate) fn at(self, time: Timestamp) -> LogEnvelope {
        LogEnvelope {
            format: LOG_FORMAT,
            actor: self.actor,
            generation: self.generation,
            time,
            traceparent: self.traceparent,
            idempotency: self.idempotency,
            command: self.command,
        }
    }
}
