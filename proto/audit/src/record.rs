//! One record of the audit log.

use comity_types::printable_json;
use serde::{Deserialize, Serialize};

use crate::hash::Hash;

/// The outcome of an act that took effect; otherwise it is the code of the refusal.
pub const DONE: &str = "done";

/// All values of [`AuditRecord::act`].
pub const ACTS: [&str; 27] = [
    "broker-invited",
    "broker-joined",
    "broker-role-set",
    "cluster-evicted",
    "cluster-invited",
    "cluster-joined",
    "group-recovered",
    "institution-resumed",
    "institution-suspended",
    "invitation-revoked",
    "lease-ended",
    "lease-placed",
    "lease-reclaim-cancelled",
    "lease-reclaimed",
    "log-time-moved",
    "policy-applied",
    "policy-pull-failed",
    "policy-source-removed",
    "policy-source-set",
    "request-cancelled",
    "request-completed",
    "request-failed",
    "request-queued-again",
    "request-submitted",
    "user-invited",
    "user-joined",
    "user-revoked",
];

/// Who did what, why, and with what outcome. Names only: no specifications, messages of agents or secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AuditRecord {
    /// Its number, from 0, without gaps.
    pub index: u64,
    /// Log time, in milliseconds since 1970.
    pub time_ms: u64,
    /// Revision of the state after it.
    pub revision: u64,
    /// Who: a SPIFFE id, a cluster, or a broker's leader task.
    pub actor: String,
    /// What: one of [`ACTS`].
    pub act: String,
    /// To what.
    pub subject: Subject,
    /// The command of the log entry that it is part of, as in "place-requests".
    pub command: String,
    /// [`DONE`], or the code of the refusal.
    pub outcome: String,
    /// Why, in a few words; empty where the act says it all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// The request that it is about.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// The tenant that it concerns.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The institutions that it concerns, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub institutions: Vec<String>,
    /// Hash of the policy bundle that was in force before it, whose files `reasons` cite; empty if there was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub policy: String,
    /// The documents and lines behind it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Citation>,
    /// Random text ([`NonceKey`](crate::NonceKey)): without it, a hash confirms no guess of the other fields.
    pub nonce: String,
    /// Hash of the record before it; zeros for the first.
    pub previous: Hash,
}

/// What an act was done to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    /// Its kind: `broker`, `cluster`, `federation`, `institution`, `invitation`, `lease`, `policy`, `policy-source`,
    /// `request`, `tenant` or `user`.
    pub kind: String,
    /// Its name or id within the kind.
    pub id: String,
}

impl Subject {
    /// A subject.
    #[must_use]
    pub fn new(kind: &'static str, id: impl ToString) -> Self {
        Self { kind: kind.to_owned(), id: id.to_string() }
    }
}

/// A line of a policy document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Citation {
    /// Kind of the document.
    pub kind: String,
    /// Name of the document.
    pub name: String,
    /// Path of its file within the bundle.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
}

/// A record as it is stored and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedRecord {
    /// Its number.
    pub index: u64,
    /// Hash of `line`.
    pub hash: Hash,
    /// One line of JSON, without its end.
    pub line: String,
}

impl AuditRecord {
    /// Writes the record as the line that is hashed, stored and exported.
    ///
    /// # Errors
    /// Never, for a record of text and numbers.
    pub fn seal(&self) -> Result<SealedRecord, serde_json::Error> {
        let json = serde_json::to_string(self)?;
        let line = printable_json(&json).into_owned();
        Ok(SealedRecord { index: self.index, hash: Hash::of_leaf(line.as_bytes()), line })
    }
}
