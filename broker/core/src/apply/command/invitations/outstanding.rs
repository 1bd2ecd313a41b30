//! Records and checks join tokens, for subjects of all kinds.

use crate::model::invite::{Invite, InviteSubject};
use crate::model::limits::MAX_INVITES;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::Millis;
use crate::state::transition::Transition;

/// Records the hash of a token's secret.
pub(crate) fn record_invite(
    transition: &mut Transition<'_>,
    secret_sha256: &str,
    subject: InviteSubject,
    ttl: Millis,
) -> Reply {
    if transition.state().invites.len() >= MAX_INVITES {
        return Err(Refusal::new(
            Code::LimitReached,
            format!("{MAX_INVITES} join tokens are outstanding"),
            "wait until some are used or expire",
        ));
    }
    let expires_at = transition.now().after(ttl);
    transition.insert_invite(secret_sha256, Invite { subject: subject.clone(), expires_at });
    Ok(ReplyBody::Invited { subject, expires_at })
}

/// Refuses a token that is unknown, has expired or is for another subject. Uses up nothing.
pub(crate) fn check_invite(
    transition: &Transition<'_>,
    secret_sha256: &str,
    subject: &InviteSubject,
) -> Result<(), Refusal> {
    let invalid = |reason: String| Refusal::new(Code::InvalidToken, reason, subject.remedy());
    let invite = transition
        .state()
        .invites
        .get(secret_sha256)
        .ok_or_else(|| invalid("the join token is unknown, expired or already used".to_owned()))?;
    if invite.expires_at <= transition.now() {
        return Err(invalid("the join token has expired".to_owned()));
    }
    if invite.subject != *subject {
        let reason = format!("the join token is for another {}", subject.kind());
        return Err(invalid(reason).at(subject.kind(), subject));
    }
    Ok(())
}
