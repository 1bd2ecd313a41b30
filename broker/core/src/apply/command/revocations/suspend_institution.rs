//! Suspends an institution.

use std::collections::BTreeSet;

use comity_types::{ClusterId, InstitutionId, LeaseId};
use serde::{Deserialize, Serialize};

use super::check_caller;
use crate::model::actor::Actor;
use crate::model::limits::MAX_SUSPENSIONS;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::revocation::{LeaseTreatment, RevocationEffects};
use crate::state::State;
use crate::state::transition::Transition;

/// Suspends an institution: its clusters and users get no calls through, its clusters lend and borrow nothing, and its
/// tenants' requests wait. Its leases are treated, also those that its tenants have elsewhere. Nothing is forgotten, so
/// that it goes on after it is resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendInstitution {
    /// The institution.
    pub institution: InstitutionId,
    /// What becomes of its leases.
    pub leases: LeaseTreatment,
}

impl SuspendInstitution {
    /// What the command would end, for `actor`.
    ///
    /// # Errors
    /// The refusal that [`State::apply`] would answer.
    pub fn effects(&self, state: &State, actor: &Actor) -> Result<RevocationEffects, Refusal> {
        let name = &self.institution;
        check_caller(
            state,
            actor,
            |_, _| false,
            &format!("suspend institution {name}"),
            "let one of the `maintainers` of the Federation document suspend it",
        )?;
        let policy = state.policy.as_ref().ok_or_else(Refusal::no_policy)?;
        if !policy.bundle.institutions.contains_key(name.as_str()) {
            return Err(Refusal::not_found("institution", name, "institution"));
        }
        if state.suspensions.contains_key(name) {
            let reason = format!("institution {name} is suspended already");
            let remedy = "to treat its leases otherwise, resume it and suspend it again";
            return Err(Refusal::new(Code::WrongState, reason, remedy).at("institution", name));
        }
        if state.suspensions.len() >= MAX_SUSPENSIONS {
            return Err(Refusal::new(
                Code::LimitReached,
                format!("{MAX_SUSPENSIONS} institutions are suspended"),
                "resume one with `comity institution resume`, or evict its clusters",
            ));
        }
        let (clusters, leases) = self.members(state);
        Ok(RevocationEffects::of(clusters, leases.iter().filter_map(|id| state.leases.get(id)), 0))
    }

    /// The institution's clusters, by policy or as they joined; their leases, and those of its tenants elsewhere.
    fn members(&self, state: &State) -> (Vec<ClusterId>, BTreeSet<LeaseId>) {
        let name = &self.institution;
        let policy = state.policy.iter();
        let owned = policy.flat_map(|record| record.bundle.enrollable_clusters());
        let owned = owned.filter(|(_, owner)| *owner == name.as_str());
        let owned: BTreeSet<&str> = owned.map(|(cluster, _)| cluster).collect();
        let is_theirs = |id: &&ClusterId| {
            let joined_for = state.clusters.get(*id).map(|cluster| &cluster.institution);
            owned.contains(id.as_str()) || joined_for == Some(name)
        };
        let clusters: Vec<ClusterId> = state.clusters.keys().filter(is_theirs).cloned().collect();
        let mut leases: BTreeSet<LeaseId> =
            clusters.iter().flat_map(|cluster| state.leases_of(cluster)).map(|(id, _)| id).collect();
        leases.extend(state.live_leases().filter(|(_, lease)| lease.institution == *name).map(|(id, _)| id));
        (clusters, leases)
    }

    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let effects = self.effects(transition.state(), transition.actor())?;
        let (clusters, leases) = self.members(transition.state());
        transition.insert_suspension(self.institution.clone());
        for cluster in &clusters {
            transition.withdraw_cluster(cluster, self.leases);
        }
        // Among them those that its tenants have at clusters of other institutions.
        for lease in leases {
            transition.treat_lease(lease, self.leases);
        }
        Ok(ReplyBody::Revoked(effects))
    }
}
