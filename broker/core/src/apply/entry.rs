//! The log entry and the version of its format.

use serde::{Deserialize, Serialize};

use crate::apply::command::Command;
use crate::model::actor::Actor;
use crate::model::reply::Idempotency;
use crate::model::time::Timestamp;

/// Version of [`LogEnvelope`]. A broker refuses to start on entries of a later version.
pub const LOG_FORMAT: u16 = 1;

/// One log entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogEnvelope {
    /// [`LOG_FORMAT`].
    pub format: u16,
    /// Who proposed the command.
    pub actor: Actor,
    /// Generation of the certificate with which the actor called; 0 for leader tasks, who have none.
    pub generation: u64,
    /// The leader's log clock at the proposal. Apply adds `time_shift_ms` and keeps log time from going back.
    pub time: Timestamp,
    /// W3C traceparent of the proposer's span; empty if none.
    pub traceparent: String,
    /// Present on calls from clients.
    pub idempotency: Option<Idempotency>,
    /// The command to apply.
    pub command: Command,
}
