//! Revokes a user's certificates.

use serde::{Deserialize, Serialize};

use super::check_caller;
use crate::model::actor::Actor;
use crate::model::invite::{Invite, InviteSubject};
use crate::model::limits::{MAX_REVOKED_USERS, REVOCATION_KEPT_MS};
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::revocation::RevocationEffects;
use crate::state::State;
use crate::state::transition::Transition;

/// Voids all certificates of a user, open invitations for the user, and those that the user made: a stolen key may have
/// made them. Requests and leases of the tenant stay: they are the tenant's.
/// Roles stay too, for the certificate that a new token gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeUser {
    /// Name of the user.
    pub user: String,
}

impl RevokeUser {
    /// Checks the command for `actor`.
    ///
    /// # Errors
    /// The refusal that [`State::apply`] would answer.
    pub fn check(&self, state: &State, actor: &Actor) -> Result<(), Refusal> {
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
        if *actor == Actor::User(id) {
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
        Ok(())
    }

    /// The user's SPIFFE id; empty before the first policy bundle.
    fn id(&self, state: &State) -> String {
        let trust_domain = state.policy.as_ref().map(|record| &record.bundle.federation.spec.trust_domain);
        trust_domain.map_or_else(String::new, |domain| format!("spiffe://{domain}/user/{}", self.user))
    }

    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        self.check(transition.state(), transition.actor())?;
        transition.void_user_certificates(&self.user);
        let (subject, inviter) = (InviteSubject::User(self.user.clone()), Actor::User(self.id(transition.state())));
        let is_void = |invite: &Invite| invite.subject == subject || invite.inviter == inviter;
        let invites = transition.state().invites.iter().filter(|(_, invite)| is_void(invite));
        let invites: Vec<String> = invites.map(|(hash, _)| hash.clone()).collect();
        invites.iter().for_each(|hash| transition.remove_invite(hash));
        Ok(ReplyBody::Revoked(RevocationEffects::default()))
    }
}
