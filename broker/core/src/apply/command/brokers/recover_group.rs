//! Starts a new broker group from a backup of an old one.

use serde::{Deserialize, Serialize};

use crate::apply::transition::Transition;
use crate::model::limits::RECOVERY_GAP;
use crate::model::reply::{Reply, ReplyBody};

/// The backup may lack the last entries of the old group, and with them ids and fencing tokens that agents and users
/// have seen. All counters skip ahead by [`RECOVERY_GAP`], so the new group does not reuse any of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoverGroup {
    /// The broker whose backup was restored.
    pub broker: u64,
}

impl RecoverGroup {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let state = &mut *transition.state;
        for counter in [&mut state.revision, &mut state.next_request, &mut state.next_lease, &mut state.next_peering] {
            *counter = counter.saturating_add(RECOVERY_GAP);
        }
        for (_, cluster) in state.clusters.iter_mut() {
            cluster.last_fencing_token = cluster.last_fencing_token.saturating_add(RECOVERY_GAP);
        }
        Ok(ReplyBody::Done)
    }
}
