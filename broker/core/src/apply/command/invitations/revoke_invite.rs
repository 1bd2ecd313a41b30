//! Revokes an invitation.

use serde::{Deserialize, Serialize};

use crate::apply::command::invitations::open_invitations::may_revoke;
use crate::model::invite::InvitationId;
use crate::model::refusal::Refusal;
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Forgets the hash of a join token's secret, so that the token admits nobody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeInvite {
    /// Id of the invitation.
    pub id: InvitationId,
}

impl RevokeInvite {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let (state, actor) = (transition.state(), transition.actor());
        let mut open = state.invites.iter().filter(|(hash, _)| InvitationId::of(hash) == self.id);
        let found = open.find(|(_, invite)| may_revoke(state, actor, invite)).map(|(hash, _)| hash.clone());
        // Whoever may not revoke an invitation does not learn that it exists.
        let hash = found.ok_or_else(|| Refusal::not_found("invitation", &self.id, "invitation"))?;
        transition.remove_invite(&hash);
        Ok(ReplyBody::Done)
    }
}
