//! Messages that followers forward to their leader, and its replies.

use comity_core::Refusal;
use comity_core::reply::Applied;
use serde::{Deserialize, Serialize};

use crate::replication::membership_change::RequestedChange;
use crate::replication::proposal::Proposal;

/// A request forwarded to the leader.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "it is made once, written out and dropped; proposals are what it is for")]
pub(crate) enum ForwardRequest {
    /// A command.
    Propose { proposal: Proposal, timeout_ms: u64 },
    /// A change of the members.
    ChangeMembers(RequestedChange),
}

/// The leader's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ForwardReply {
    /// The command was appended and applied.
    Applied(Applied),
    /// Nothing was appended: this broker does not lead.
    NotAppended,
    /// The command may have been appended.
    Unknown(String),
    /// The membership change was made.
    MembersChanged,
    /// The members cannot be changed so, with the reason.
    MembersRefused(String),
    /// The replicated state refused the membership change.
    Refused(Refusal),
}
