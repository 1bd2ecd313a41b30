//! Evicts a cluster.

use comity_types::{ClusterId, LeaseTreatment};
use serde::{Deserialize, Serialize};

use super::{check_caller, check_tightens};
use crate::apply::consequences::exclusions::waiting_at;
use crate::model::actor::Actor;
use crate::model::invite::InviteSubject;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::revocation::{Exclusion, RevocationEffects};
use crate::state::State;
use crate::state::transition::Transition;

/// Ends a cluster's membership: voids its certificates and open invitations, withdraws its offer, cancels its waiting
/// requests, treats its leases and closes its peerings. The record stays, because fencing tokens must not repeat. Only
/// a maintainer lets in again what a maintainer evicted. Repeated, it treats the leases more tightly, or makes an
/// operator's eviction a maintainer's.
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
        if let Some(evicted) = &found.evicted {
            self.check_repeat(state, actor, evicted)?;
        }
        let leases = state.leases_of(&self.cluster).map(|(_, lease)| lease);
        let effects = RevocationEffects::of(vec![self.cluster.clone()], leases, waiting_at(state, &self.cluster).len());
        Ok(RevocationEffects { invitations: self.void_invites(state).count(), ..effects })
    }

    /// Refuses to evict the cluster again if that changes nothing, or spares leases.
    fn check_repeat(&self, state: &State, actor: &Actor, evicted: &Exclusion) -> Result<(), Refusal> {
        let done = format!("cluster {} is evicted already, by {}", self.cluster, evicted.by);
        if !evicted.by_maintainer && state.is_maintainer(actor) {
            if self.leases >= evicted.leases {
                return Ok(());
            }
            let treated = evicted.leases.as_str();
            let done = format!("{done}, with `--leases {treated}`");
            let remedy = format!(
                "evict it with `--leases {treated}` or tighter, so that only a maintainer lets it in again; what was treated \
                 so cannot be loosened"
            );
            return Err(Refusal::new(Code::WrongState, done, remedy).at("cluster", &self.cluster));
        }
        let leases = state.leases_of(&self.cluster).map(|(_, lease)| lease);
        check_tightens(evicted, self.leases, done, leases).map_err(|refusal| refusal.at("cluster", &self.cluster))
    }

    /// The open invitations for the cluster, by the hash of their secret.
    fn void_invites<'s>(&'s self, state: &'s State) -> impl Iterator<Item = &'s String> {
        let is_for = |subject: &InviteSubject| matches!(subject, InviteSubject::Cluster(it) if *it == self.cluster);
        state.invites.iter().filter(move |(_, invite)| is_for(&invite.subject)).map(|(hash, _)| hash)
    }

    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let effects = self.effects(transition.state(), transition.actor())?;
        let (void_before, exclusion) = (transition.raise_generation(), transition.exclusion(self.leases));
        transition.change_cluster(&self.cluster, |cluster| {
            cluster.void_before = void_before;
            cluster.evicted = Some(exclusion.after(cluster.evicted.as_ref()));
        });
        let invites: Vec<String> = self.void_invites(transition.state()).cloned().collect();
        invites.iter().for_each(|hash| transition.remove_invite(hash));
        transition.withdraw_offer(&self.cluster);
        transition.forget_certificate(&self.cluster);
        let requests = waiting_at(transition.state(), &self.cluster);
        transition.cancel_waiting(&requests, &format!("cluster {} was evicted", self.cluster));
        transition.withdraw_cluster(&self.cluster, self.leases);
        Ok(ReplyBody::Revoked(effects))
    }
}
