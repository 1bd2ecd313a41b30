//! Starts a new broker group from a backup of an old one.

use serde::{Deserialize, Serialize};

use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// The backup may lack the last entries of the old group, and with them ids and fencing tokens that agents and users
/// have seen. All counters skip ahead by [`RECOVERY_GAP`](crate::model::limits::RECOVERY_GAP), so the new group
/// reuses none of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoverGroup {
    /// The broker whose backup was restored.
    pub broker: u64,
}

impl RecoverGroup {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        transition.skip_counters();
        Ok(ReplyBody::Done)
    }
}
