//! Stored replies, so that a repeated call changes nothing.

use serde::{Deserialize, Serialize};

use crate::collections::cow_map::CowMap;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Idempotency, Reply};
use crate::model::time::{Millis, Timestamp};

/// How long to keep a reply: a client that retries after a day starts over.
pub const KEPT_FOR: Millis = Millis::from_hours(24);

/// A stored reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredReply {
    /// The caller's institution when the call was applied; none for those who act for the federation.
    pub institution: Option<String>,
    /// SHA-256 of the call's body.
    pub body_sha256: String,
    /// The reply.
    pub reply: Reply,
    /// When the call was applied.
    pub at: Timestamp,
}

/// Key of a record: caller and idempotency key. Callers are SPIFFE ids, which contain no spaces.
#[must_use]
pub fn record_name(idempotency: &Idempotency) -> String {
    format!("{} {}", idempotency.caller, idempotency.key)
}

/// The caller under which the reply to the join of a broker is stored: it has no certificate yet.
#[must_use]
pub fn joining_broker(broker: u64) -> String {
    format!("join/broker/{broker}")
}

/// The caller of a record.
#[must_use]
pub(crate) fn caller_of(record_name: &str) -> &str {
    record_name.split_once(' ').map_or(record_name, |(caller, _)| caller)
}

/// The stored reply to a repeated call, if there is one.
#[must_use]
pub fn seen(table: &CowMap<String, StoredReply>, idempotency: &Idempotency) -> Option<Reply> {
    let record = table.get(&record_name(idempotency))?;
    if record.body_sha256 == idempotency.body_sha256 {
        return Some(record.reply.clone());
    }
    Some(Err(Refusal::new(
        Code::IdempotencyConflict,
        "the idempotency key was used before with another body",
        "use a fresh key for a different call, or repeat the call as it was",
    )
    .at("idempotency_key", &idempotency.key)))
}
