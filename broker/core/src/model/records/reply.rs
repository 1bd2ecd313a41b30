//! Answers to commands, and what they changed.

use serde::{Deserialize, Serialize};

use crate::model::id::{ClusterId, LeaseId, PeeringId, RequestId};
use crate::model::refusal::Refusal;
use crate::model::time::Timestamp;

/// Who proposed a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Actor {
    /// A person or program, by SPIFFE id.
    User(String),
    /// A cluster's agent.
    Cluster(ClusterId),
    /// A leader task of broker `id`.
    Leader(u64),
}

/// Makes a repeated call harmless.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// SPIFFE id of the caller.
    pub caller: String,
    /// The caller's key.
    pub key: String,
    /// SHA-256 of the call's body in its canonical form, in hex.
    pub body_sha256: String,
}

/// What a command that was carried out gives back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplyBody {
    /// Nothing to say.
    Done,
    /// A request was made or changed.
    Request(RequestId),
    /// A lease was changed.
    Lease(LeaseId),
    /// A bundle was looked at; `changed` is false if it was in force already.
    Policy {
        /// Whether it is new.
        changed: bool,
    },
    /// A join token was recorded.
    Invited {
        /// When it ends.
        expires_at: Timestamp,
    },
    /// Placements were checked one by one.
    Placed {
        /// Leases made.
        leases: Vec<LeaseId>,
        /// Placements that did not fit any more.
        refused: Vec<(RequestId, Refusal)>,
    },
    /// Calls back were checked one by one.
    Reclaimed {
        /// Leases reclaimed.
        leases: Vec<LeaseId>,
        /// Leases that stay after all.
        spared: Vec<LeaseId>,
        /// What was not right any more.
        refused: Vec<(LeaseId, Refusal)>,
    },
    /// Things fell due.
    Expired {
        /// How many.
        moved: u32,
    },
}

/// Answer to a command.
pub type Reply = Result<ReplyBody, Refusal>;

/// What changed; the objects themselves are in the state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A cluster, its offer or liveness.
    Cluster(ClusterId),
    /// A request.
    Request(RequestId),
    /// A lease.
    Lease(LeaseId),
    /// A peering, its keys or envelopes.
    Peering(PeeringId),
    /// Envelopes for a cluster.
    Envelopes(ClusterId),
    /// A join token for a cluster: made or expired.
    Invite(ClusterId),
    /// The policy bundle.
    Policy,
}

/// Outcome of applying one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// For whoever proposed it.
    pub reply: Reply,
    /// Revision after it.
    pub revision: u64,
    /// What changed, sorted, without repetitions; empty if nothing did.
    pub changes: Vec<Change>,
}
