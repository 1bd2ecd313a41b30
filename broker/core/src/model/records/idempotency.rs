//! Answers that are kept so that a repeated call changes nothing.

use serde::{Deserialize, Serialize};

use crate::collections::cow_map::CowMap;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Idempotency, Reply};
use crate::model::time::{Millis, Timestamp};

/// How long an answer is kept: a client that retries later than a day starts again.
pub const KEPT_FOR: Millis = Millis::from_hours(24);

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// SHA-256 of the body the answer was for.
    pub body_sha256: String,
    /// The answer.
    pub reply: Reply,
    /// When it was given.
    pub at: Timestamp,
}

/// Name of a record: caller and key. Callers are SPIFFE ids, which have no blanks.
#[must_use]
pub fn record_name(idempotency: &Idempotency) -> String {
    format!("{} {}", idempotency.caller, idempotency.key)
}

/// The answer to give without doing anything, if this call was seen before.
#[must_use]
pub fn seen(table: &CowMap<String, Record>, idempotency: &Idempotency) -> Option<Reply> {
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
