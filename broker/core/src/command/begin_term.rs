//! A new leader begins.

use serde::{Deserialize, Serialize};

use crate::id::{LeaseId, PeeringId};
use crate::lease::LeaseState;
use crate::log::{Reply, ReplyBody};
use crate::transition::Transition;

/// The first command of every leader. If nothing was logged for longer than agents take to be called silent, there was
/// an outage: every lease in force gets a full fresh term, and every notice, hold and handshake step its full time, for nobody
/// could renew or report meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginTerm {
    /// The leader.
    pub broker: u64,
}

impl BeginTerm {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let now = transition.now;
        if now.since(transition.log_time_before) < transition.settings.silent_after {
            return Ok(ReplyBody::Done);
        }
        let leases: Vec<LeaseId> = transition
            .state
            .live_leases()
            .filter(|(_, lease)| lease.state != LeaseState::Ending)
            .map(|(id, _)| id)
            .collect();
        let hold = transition.settings.hold;
        for id in leases {
            transition.change_lease(id, |lease| {
                if lease.state.is_held() {
                    lease.hold_until = now.after(hold);
                } else {
                    lease.expires_at = Some(now.after(lease.term));
                }
                // Nobody could hear of the notice meanwhile, or say that work is saved.
                if let Some(reclaim) = &mut lease.reclaim {
                    reclaim.deadline = now.after(reclaim.grace);
                }
            });
        }
        let step = transition.settings.handshake_step;
        let peerings: Vec<PeeringId> = transition
            .state
            .peerings
            .iter()
            .filter(|(_, peering)| peering.state.is_handshaking())
            .map(|(id, _)| *id)
            .collect();
        for id in peerings {
            transition.change_peering(id, |peering| peering.deadline = Some(now.after(step)));
        }
        Ok(ReplyBody::Done)
    }
}
