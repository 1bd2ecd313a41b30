//! Uses a join token for a user.

use serde::{Deserialize, Serialize};

use crate::apply::command::invitations::open_invitations::check_invite;
use crate::model::invite::InviteSubject;
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::Timestamp;
use crate::state::transition::Transition;

/// Consumes a join token; the broker then issues the user's certificate. The state keeps no list of users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinUser {
    /// Name of the user.
    pub user: String,
    /// SHA-256 of the token's secret, in hex.
    pub secret_sha256: String,
    /// Expiry of the certificate that the broker issues to the user.
    pub certificate_not_after: Timestamp,
}

impl JoinUser {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        check_invite(
            transition.state(),
            transition.now(),
            &self.secret_sha256,
            &InviteSubject::User(self.user.clone()),
        )?;
        transition.remove_invite(&self.secret_sha256);
        let generation = transition.state().certificate_generation;
        Ok(ReplyBody::Certificate { generation, not_after: self.certificate_not_after })
    }
}
