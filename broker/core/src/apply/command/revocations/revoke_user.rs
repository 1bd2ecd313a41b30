//! Revokes a user's certificates.

use comity_types::LeaseTreatment;
use serde::{Deserialize, Serialize};

use super::check_caller;
use crate::apply::consequences::user_requests::OwnRequests;
use crate::model::actor::{Actor, user_name};
use crate::model::invite::{Invite, InviteSubject};
use crate::model::lease::Lease;
use crate::model::limits::{MAX_REVOKED_USERS, REVOCATION_KEPT_MS};
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::revocation::UserRevocationEffects;
use crate::state::State;
use crate::state::transition::Transition;

/// Voids all certificates of a user, open invitations for the user, and those that the user made: a stolen key may have
/// made them. Requests and leases are the tenant's and stay, unless those of the user's own requests are to be drained
/// or stopped; an operator ends those of the institutions that he or she operates. Roles stay too, for the certificate
/// that a new token gives. Tokens of leases belong to the lease: donors keep them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeUser {
    /// Name of the user.
    pub user: String,
    /// Whether the user may be one of whom the state knows nothing: somebody with a certificate of `comity-broker
    /// issue-user` alone.
    pub allow_unknown: bool,
    /// What becomes of the leases of requests that the user submitted.
    pub leases: LeaseTreatment,
}

impl RevokeUser {
    /// What the command would end, for `actor`.
    ///
    /// # Errors
    /// The refusal that [`State::apply`] would answer.
    pub fn effects(&self, state: &State, actor: &Actor) -> Result<UserRevocationEffects, Refusal> {
        let user = &self.user;
        let id = self.id(state);
        check_caller(
            state,
            actor,
            |bundle, caller| {
                // Whoever has a role elsewhere too, or for the federation, is not one institution's to revoke.
                let (institutions, roles) = (state.institutions_of_user(&id), bundle.roles_of(caller));
                !institutions.is_empty() && institutions.iter().all(|name| roles.institutions_operated.contains(*name))
            },
            &format!("revoke user {user}"),
            "let a maintainer do it; operators revoke users whose roles are all in institutions that they operate",
        )?;
        if !self.allow_unknown && !self.is_known(state, &id) {
            let remedy = "check the name, the last part of the SPIFFE id; a certificate of `comity-broker issue-user` is \
                known to nobody: to revoke it, set allow_unknown";
            let reason = format!("no policy, no invitation and no certificate of a broker has a user {user}");
            return Err(Refusal::new(Code::NotFound, reason, remedy).at("user", user));
        }
        if actor.user_name() == Some(user) {
            // Somebody who can make new tokens is left.
            let reason = format!("{user} would revoke the certificate of this call");
            let remedy = "let another maintainer do it; a new one can be named on a broker's machine";
            return Err(Refusal::new(Code::WrongState, reason, remedy).at("user", user));
        }
        let kept = |at| state.log_time.since(at).0 < REVOCATION_KEPT_MS;
        let known = state.revoked_users.contains_key(user);
        if !known && state.revoked_users.values().filter(|revoked| kept(revoked.at)).count() >= MAX_REVOKED_USERS {
            return Err(Refusal::new(
                Code::LimitReached,
                format!("{MAX_REVOKED_USERS} users were revoked within 91 days"),
                "take away the user's roles instead: remove the id from the policy documents",
            ));
        }
        let tenants = state.policy.as_ref().map(|record| record.bundle.roles_of(&id).tenants).unwrap_or_default();
        let ends = self.leases != LeaseTreatment::Finish;
        let is_theirs = |lease: &Lease| lease.state.is_in_force() && tenants.contains_key(lease.tenant.as_str());
        let own = self.own_requests(state, actor);
        let stays = |lease: &Lease| is_theirs(lease) && !(ends && own.have(state, lease));
        Ok(UserRevocationEffects {
            invitations: self.void_invites(state).count(),
            leases: state.live_leases().filter(|(_, lease)| stays(lease)).count(),
            own: ends.then(|| own.effects(state)),
            none_may_invite: !self.others_may_invite(state),
        })
    }

    /// The requests of the user that are treated: for an operator, those of the institutions that the operator runs. The
    /// user may have submitted others in roles of the past.
    fn own_requests(&self, state: &State, actor: &Actor) -> OwnRequests {
        let user = self.id(state);
        let roles = match (&state.policy, actor) {
            (Some(record), Actor::User(caller)) => Some(record.bundle.roles_of(caller)),
            _ => None,
        };
        let operated = roles.filter(|roles| !roles.federation_admin).map(|roles| roles.institutions_operated);
        OwnRequests { user, operated }
    }

    /// Whether somebody else with a certificate may invite the user again. Any maintainer may, unless the user operates
    /// brokers: then only one who operates brokers too.
    fn others_may_invite(&self, state: &State) -> bool {
        let Some(bundle) = state.policy.as_ref().map(|record| &record.bundle) else { return true };
        let has_certificate =
            |name: &str| !state.revoked_users.contains_key(name) || state.certificates.users.contains_key(name);
        let mut maintainers = bundle.federation.spec.maintainers.iter();
        maintainers.any(|id| {
            user_name(id).is_some_and(|name| name != self.user && has_certificate(name))
                && bundle.may_invite_user(id, &self.user)
        })
    }

    /// Whether the policy in force, an invitation, a certificate or a revocation names the user.
    fn is_known(&self, state: &State, id: &str) -> bool {
        let user = &self.user;
        state.policy.as_ref().is_none_or(|record| !record.bundle.roles_of(id).is_empty())
            || state.certificates.users.contains_key(user)
            || state.revoked_users.contains_key(user)
            || self.void_invites(state).next().is_some()
    }

    /// The invitations for the user and those that the user made, by the hash of their secret.
    fn void_invites<'s>(&'s self, state: &'s State) -> impl Iterator<Item = &'s String> {
        let subject = InviteSubject::User(self.user.clone());
        // By name: the first maintainers invite before a bundle says what the trust domain is.
        let is_void =
            move |invite: &Invite| invite.subject == subject || invite.inviter.user_name() == Some(&self.user);
        state.invites.iter().filter(move |(_, invite)| is_void(invite)).map(|(hash, _)| hash)
    }

    /// The user's SPIFFE id; empty before the first policy bundle.
    fn id(&self, state: &State) -> String {
        let trust_domain = state.policy.as_ref().map(|record| &record.bundle.federation.spec.trust_domain);
        trust_domain.map_or_else(String::new, |domain| format!("spiffe://{domain}/user/{}", self.user))
    }

    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let effects = self.effects(transition.state(), transition.actor())?;
        let own = self.own_requests(transition.state(), transition.actor());
        let invites: Vec<String> = self.void_invites(transition.state()).cloned().collect();
        transition.void_user_certificates(&self.user);
        invites.iter().for_each(|hash| transition.remove_invite(hash));
        transition.treat_requests_of(&own, self.leases);
        Ok(ReplyBody::UserRevoked(effects))
    }
}
