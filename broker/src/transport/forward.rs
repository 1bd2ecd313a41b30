//! Messages that followers forward to their leader, and its replies.

use comity_core::log::Applied;
use serde::{Deserialize, Serialize};

use crate::replication::membership_change::MembershipChange;
use crate::replication::proposal::Proposal;

/// Handed to the leader.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "it is made once, written out and dropped; proposals are what it is for")]
pub(crate) enum ForwardRequest {
    /// A command.
    Propose { proposal: Proposal, timeout_ms: u64 },
    /// A change of the members.
    ChangeMembers(MembershipChange),
}

/// The leader's answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ForwardReply {
    /// The command is in the log, and applied.
    Applied(Applied),
    /// It is not, and will not be: this broker does not lead.
    NotAppended,
    /// It may be.
    Unknown(String),
    /// The change was made.
    MembersChanged,
    /// It was not, and this is why.
    MembersRefused(String),
}
