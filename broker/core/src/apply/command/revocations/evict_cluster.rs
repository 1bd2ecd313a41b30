//! Evicts a cluster.

use comity_types::ClusterId;
use serde::{Deserialize, Serialize};

use super::check_caller;
use crate::apply::consequences::exclusions::waiting_at;
use crate::model::actor::Actor;
use crate::model::invite::InviteSubject;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::revocation::{Exclusion, LeaseTreatment, RevocationEffects};
use crate::state::State;
use crate::state::transition::Transition;

/// Ends a cluster's membership: voids its certificates and open invitations, withdraws its offer, cancels its waiting
/// requests, treats its leases and closes its peerings. The record stays, because fencing tokens must not repeat. Only
/// a maintainer lets in again what a maintainer evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvictCluster {
    /// The member.
    pub cluster: ClusterId,
    /// What becomes of its leases.
    pub leases: LeaseTreatment,
}

impl EvictCluster {
    /// What the command would end, for `actor`.
    ///
    /// # Errors
    /// The refusal that [`State::apply`] would answer.
    pub fn effects(&self, state: &State, actor: &Actor) -> Result<RevocationEffects, Refusal> {
        let name = self.cluster.as_str();
        check_caller(
            state,
            actor,
            |bundle, caller| bundle.may_invite(caller, name),
            &format!("evict cluster {name}"),
            "let an operator of the cluster's institution or a maintainer evict it",
        )?;
        let found = state.clusters.get(&self.cluster);
        let found = found.ok_or_else(|| Refusal::not_found("cluster", &self.cluster, "member cluster"))?;
        if let Some(Exclusion { by, .. }) = &found.evicted {
            let reason = format!("cluster {name} is evicted already, by {by}");
            return Err(Refusal::new(Code::WrongState, reason, "nothing is left to evict").at("cluster", name));
        }
        let leases = state.leases_of(&self.cluster).map(|(_, lease)| lease);
        Ok(RevocationEffects::of(vec![self.cluster.clone()], leases, waiting_at(state, &self.cluster).len()))
    }

    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let effects = self.effects(transition.state(), transition.actor())?;
        let (void_before, exclusion) = (transition.raise_generation(), transition.exclusion());
        transition.change_cluster(&self.cluster, |cluster| {
            cluster.void_before = void_before;
            cluster.evicted = Some(exclusion);
        });
        let subject = InviteSubject::Cluster(self.cluster.clone());
        let invites = transition.state().invites.iter().filter(|(_, invite)| invite.subject == subject);
        let invites: Vec<String> = invites.map(|(hash, _)| hash.clone()).collect();
        invites.iter().for_each(|hash| transition.remove_invite(hash));
        transition.withdraw_offer(&self.cluster);
        transition.forget_certificate(&self.cluster);
        let requests = waiting_at(transition.state(), &self.cluster);
        transition.cancel_waiting(&requests, &format!("cluster {} was evicted", self.cluster));
        transition.withdraw_cluster(&self.cluster, self.leases);
        Ok(ReplyBody::Revoked(effects))
    }
}
