//! Starts a new leader's term.

use comity_audit::NonceKey;
use comity_types::{LeaseId, LeaseState, PeeringId};
use serde::{Deserialize, Serialize};

use crate::model::meter::Meter;
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::{Millis, Timestamp};
use crate::state::transition::Transition;

/// Agents do not notice shorter outages, such as an ordinary change of leader.
pub const SHORTEST_OUTAGE: Millis = Millis::from_secs(2);

/// A new leader's term begins. It is the first command of a group; later leaders propose it before their tasks begin, and
/// commands of users may come before it, under the preceding key. It extends leases, holds, notices and handshake deadlines by the preceding
/// outage, because nobody could renew or report during it. The remaining time never exceeds the original length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeginTerm {
    /// The leader.
    pub broker: u64,
    /// How long no leader reached a quorum, by the members' monotonic clocks.
    pub outage: Millis,
    /// Drawn by the leader: the secret of the nonces in the audit log.
    pub nonce_key: NonceKey,
}

impl BeginTerm {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let now = transition.now();
        // The outage began after the last term did, so an outage that two leaders in a row report counts once.
        let outage = self.outage.min(now.since(transition.state().term_began));
        transition.begin_term(self.nonce_key);
        if outage < SHORTEST_OUTAGE {
            return Ok(ReplyBody::Done);
        }
        let longer = |time: Timestamp, full: Millis| time.after(outage).min(now.after(full)).max(time);
        let leases: Vec<LeaseId> = transition
            .state()
            .live_leases()
            .filter(|(_, lease)| lease.state != LeaseState::Ending)
            .map(|(id, _)| id)
            .collect();
        let hold = transition.settings().hold;
        for id in leases {
            transition.change_lease(id, |lease| {
                // A gang that has not started waits for a lease that is held.
                if lease.state.is_held() || matches!(lease.meter, Meter::Waits { .. }) {
                    lease.hold_until = longer(lease.hold_until, hold);
                }
                lease.ends_by = lease.ends_by.map(|end| end.after(outage));
                if !lease.state.is_held() {
                    lease.expires_at = lease.expires_at.map(|end| longer(end, lease.term));
                    // Nobody could report use during the outage.
                    lease.idle_since = lease.idle_since.map(|since| since.after(outage).min(now));
                }
                // Nobody could receive the notice or report saved work during the outage.
                if let Some(reclaim) = &mut lease.reclaim {
                    reclaim.deadline = longer(reclaim.deadline, reclaim.grace);
                }
            });
        }
        transition.tolerate_gpu_time();
        let step = transition.settings().handshake_step;
        let peerings: Vec<PeeringId> = transition
            .state()
            .peerings
            .iter()
            .filter(|(_, peering)| peering.state.is_handshaking())
            .map(|(id, _)| *id)
            .collect();
        for id in peerings {
            transition.change_peering(id, |peering| peering.deadline = peering.deadline.map(|end| longer(end, step)));
        }
        Ok(ReplyBody::Done)
    }
}
