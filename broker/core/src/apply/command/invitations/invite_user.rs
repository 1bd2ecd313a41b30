//! Records a join token for a user.

use serde::{Deserialize, Serialize};

use crate::apply::command::invitations::open_invitations::record_invite;
use crate::model::invite::InviteSubject;
use crate::model::reply::Reply;
use crate::model::time::Millis;
use crate::state::transition::Transition;

/// Records the hash of a join token's secret. Policy need not name the user: a certificate alone permits nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteUser {
    /// Name of the user who gets a certificate for the token.
    pub user: String,
    /// SHA-256 of the secret, in hex.
    pub secret_sha256: String,
    /// How long the token is valid.
    pub ttl: Millis,
}

impl InviteUser {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        record_invite(transition, &self.secret_sha256, InviteSubject::User(self.user.clone()), self.ttl)
    }
}
