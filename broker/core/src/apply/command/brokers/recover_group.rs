//! A new group begins with the state of an old one's copy.

use serde::{Deserialize, Serialize};

use crate::apply::transition::Transition;
use crate::model::limits::RECOVERY_GAP;
use crate::model::reply::{Reply, ReplyBody};

/// The last entries of the old group may be missing from the copy, and with them numbers and fencing tokens that agents
/// and users have seen. All counters skip ahead by [`RECOVERY_GAP`], so that none of those is given out again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoverGroup {
    /// The broker whose copy it is.
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
