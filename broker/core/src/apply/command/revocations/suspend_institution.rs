//! Suspends an institution.

use std::collections::BTreeSet;

use comity_types::{ClusterId, InstitutionId, LeaseId, LeaseTreatment};
use serde::{Deserialize, Serialize};

use super::{check_caller, check_tightens};
use crate::model::actor::Actor;
use crate::model::invite::{Invite, InviteSubject};
use crate::model::lease::Lease;
use crate::model::limits::MAX_SUSPENSIONS;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::revocation::RevocationEffects;
use crate::state::State;
use crate::state::transition::Transition;

/// Suspends an institution: its clusters and users get no calls through, its clusters lend and borrow nothing, and its
/// tenants' requests wait. Its leases are treated, also those that its tenants have elsewhere. Open invitations for its
/// clusters, and those of its operators, are void: whoever has its keys may have made them. Nothing else is forgotten, so
/// that it goes on after it is resumed. Repeated, it treats the leases more tightly.
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
        let (clusters, leases) = self.members(state);
        let leases = || leases.iter().filter_map(|id| state.leases.get(id));
        if let Some(suspended) = state.suspensions.get(name) {
            let done = format!("institution {name} is suspended already, by {}", suspended.by);
            check_tightens(suspended, self.leases, done, leases())
                .map_err(|refusal| refusal.at("institution", name))?;
        } else if state.suspensions.len() >= MAX_SUSPENSIONS {
            return Err(Refusal::new(
                Code::LimitReached,
                format!("{MAX_SUSPENSIONS} institutions are suspended"),
                "resume one with `comity institution resume`, or evict its clusters",
            ));
        }
        let invitations = self.void_invites(state).len();
        Ok(RevocationEffects { invitations, ..RevocationEffects::of(clusters, leases(), 0) })
    }

    /// The open invitations for the institution's clusters, and those of its operators who operate none that goes on, by
    /// the hash of their secret.
    fn void_invites(&self, state: &State) -> Vec<String> {
        let name = &self.institution;
        let bundle = state.policy.as_ref().map(|record| &record.bundle);
        let goes_on = |other: &String| other != name.as_str() && state.check_institution(other).is_ok();
        let is_void = |invite: &Invite| {
            let is_for_it = match &invite.subject {
                InviteSubject::Cluster(cluster) => state.institutions_of_cluster(cluster).any(|it| it == name.as_str()),
                InviteSubject::User(_) | InviteSubject::Broker(_) => false,
            };
            let (Some(bundle), Actor::User(inviter)) = (bundle, &invite.inviter) else { return is_for_it };
            let roles = bundle.roles_of(inviter);
            let operated = &roles.institutions_operated;
            let is_of_operator = operated.contains(name.as_str()) && !roles.federation_admin && !roles.broker_operator;
            is_for_it || is_of_operator && !operated.iter().any(goes_on)
        };
        state.invites.iter().filter(|(_, invite)| is_void(invite)).map(|(hash, _)| hash.clone()).collect()
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
        let is_its_tenants = |lease: &Lease| state.institutions_of_borrower(lease).any(|it| it == name.as_str());
        leases.extend(state.live_leases().filter(|(_, lease)| is_its_tenants(lease)).map(|(id, _)| id));
        (clusters, leases)
    }

    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let effects = self.effects(transition.state(), transition.actor())?;
        let (clusters, leases) = self.members(transition.state());
        let invites = self.void_invites(transition.state());
        transition.insert_suspension(self.institution.clone(), self.leases);
        invites.iter().for_each(|hash| transition.remove_invite(hash));
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
