//! Replies to commands, and the resulting changes.

use comity_audit::SealedRecord;
use comity_types::{ClusterId, LeaseId, PeeringId, RequestId};
use serde::{Deserialize, Serialize};

use crate::model::actor::Actor;
use crate::model::invite::InviteSubject;
use crate::model::refusal::Refusal;
use crate::model::revocation::{RevocationEffects, UserRevocationEffects};
use crate::model::time::Timestamp;

/// Identifies a call, so that repeating it is harmless.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idempotency {
    /// SPIFFE id of the caller.
    pub caller: String,
    /// The caller's key.
    pub key: String,
    /// SHA-256 of the call's body in its canonical form, in hex.
    pub body_sha256: String,
}

/// Result of a successful command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplyBody {
    /// No further result.
    Done,
    /// A request was created or changed.
    Request(RequestId),
    /// A lease was changed.
    Lease(LeaseId),
    /// A bundle was applied; `changed` is false if it was already in force.
    Policy {
        /// Whether the bundle is new.
        changed: bool,
    },
    /// A certificate may be issued to the caller. A repeated call gets one of the same generation and end, so it gains
    /// nothing, and nothing at all after a revocation.
    Certificate {
        /// Its generation.
        generation: u64,
        /// Its end.
        not_after: Timestamp,
    },
    /// Certificates are void, or an institution is suspended.
    Revoked(RevocationEffects),
    /// The certificates of a user are void.
    UserRevoked(UserRevocationEffects),
    /// A join token was recorded.
    Invited {
        /// Who may join with it.
        subject: InviteSubject,
        /// When the token expires.
        expires_at: Timestamp,
    },
    /// A broker joined. A repeated call may get the group's secrets again only while this inviter may invite brokers.
    BrokerJoined {
        /// Who made the token.
        inviter: Actor,
        /// Generation of the inviter's certificate.
        generation: u64,
    },
    /// Placements were checked individually.
    Placed {
        /// New leases.
        leases: Vec<LeaseId>,
        /// Placements that are no longer valid.
        refused: Vec<(RequestId, Refusal)>,
    },
    /// Reclaims were checked individually.
    Reclaimed {
        /// Leases now under reclaim.
        leases: Vec<LeaseId>,
        /// Leases whose reclaim was cancelled.
        spared: Vec<LeaseId>,
        /// Reclaims that are no longer valid.
        refused: Vec<(LeaseId, Refusal)>,
    },
    /// Deadlines were handled.
    Expired {
        /// Number of objects changed.
        moved: u32,
    },
}

/// Reply to a command.
pub type Reply = Result<ReplyBody, Refusal>;

/// A changed object. The state contains the object itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// A cluster, its offer or its liveness.
    Cluster(ClusterId),
    /// A request.
    Request(RequestId),
    /// A lease.
    Lease(LeaseId),
    /// A peering, its keys or envelopes.
    Peering(PeeringId),
    /// Envelopes for a cluster.
    Envelopes(ClusterId),
    /// An invitation: made, used, revoked or expired.
    Invite(InviteSubject),
    /// The policy bundle.
    Policy,
    /// Void certificates, or suspended institutions.
    Revocations,
}

/// Outcome of applying one entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The reply to the proposer.
    pub reply: Reply,
    /// The revision after the entry.
    pub revision: u64,
    /// Changed objects, sorted and without duplicates; empty if nothing changed.
    pub changes: Vec<Change>,
    /// Records of the audit log that the entry makes. Each broker stores its own, so none are sent with the reply.
    #[serde(skip)]
    pub audit: Vec<SealedRecord>,
}
