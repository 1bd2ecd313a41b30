//! Records and checks invitations, for subjects of all kinds.

use comity_policy::Bundle;

use crate::model::actor::Actor;
use crate::model::invite::{Invite, InviteSubject};
use crate::model::limits::{MAX_INVITES, MAX_INVITES_PER_INSTITUTION, MAX_INVITES_PER_INVITER};
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::{Millis, Timestamp};
use crate::state::State;
use crate::state::transition::Transition;

const REVOKE: &str = "revoke some of `comity invitation list` with `comity invitation revoke ID`";

/// Records the hash of a token's secret.
pub(crate) fn record_invite(
    transition: &mut Transition<'_>,
    secret_sha256: &str,
    subject: InviteSubject,
    ttl: Millis,
) -> Reply {
    let inviter = transition.actor();
    check_inviter(transition.state(), inviter, &subject)?;
    check_room(transition.state(), inviter, &subject, transition.now())?;
    let expires_at = transition.now().after(ttl);
    let generation = transition.generation();
    let invite = Invite { subject: subject.clone(), inviter: inviter.clone(), generation, expires_at };
    transition.insert_invite(secret_sha256, invite);
    Ok(ReplyBody::Invited { subject, expires_at })
}

fn check_room(state: &State, inviter: &Actor, subject: &InviteSubject, now: Timestamp) -> Result<(), Refusal> {
    let limit_reached = |reason: String, open: &[&Invite]| {
        let first = open.iter().map(|invite| invite.expires_at).min().unwrap_or(now);
        let minutes = first.0.saturating_sub(now.0).div_ceil(60_000);
        Err(Refusal::new(
            Code::LimitReached,
            reason,
            format!("{REVOKE}, or wait {minutes} min until the first expires"),
        ))
    };
    let own: Vec<&Invite> = state.invites.values().filter(|invite| invite.inviter == *inviter).collect();
    if own.len() >= MAX_INVITES_PER_INVITER {
        return limit_reached(format!("{} has {MAX_INVITES_PER_INVITER} open invitations", inviter.name()), &own);
    }
    if let Some(institution) = institution_of(state, subject) {
        let of_institution =
            state.invites.values().filter(|it| institution_of(state, &it.subject) == Some(institution));
        let open: Vec<&Invite> = of_institution.collect();
        if open.len() >= MAX_INVITES_PER_INSTITUTION {
            let reason =
                format!("the clusters of {institution} have {MAX_INVITES_PER_INSTITUTION} open invitations together");
            return limit_reached(reason, &open);
        }
    }
    if state.invites.len() >= MAX_INVITES {
        let all: Vec<&Invite> = state.invites.values().collect();
        return limit_reached(format!("the federation has {MAX_INVITES} open invitations"), &all);
    }
    Ok(())
}

/// The institution of an invited cluster.
fn institution_of<'s>(state: &'s State, subject: &InviteSubject) -> Option<&'s str> {
    match subject {
        InviteSubject::Cluster(cluster) => state.policy.as_ref()?.bundle.institution_of_cluster(cluster.as_str()),
        InviteSubject::User(_) | InviteSubject::Broker(_) => None,
    }
}

/// The open invitation of a token. Refuses a token that is unknown, has expired, is for another subject, or whose
/// inviter may not invite the subject any more, was revoked since, or is suspended. Uses up nothing.
///
/// # Errors
/// [`Code::InvalidToken`].
pub fn check_invite<'s>(
    state: &'s State,
    now: Timestamp,
    secret_sha256: &str,
    subject: &InviteSubject,
) -> Result<&'s Invite, Refusal> {
    let invalid = |reason: String| Refusal::new(Code::InvalidToken, reason, subject.remedy());
    let invite = state
        .invites
        .get(secret_sha256)
        .ok_or_else(|| invalid("the join token is unknown, expired, revoked or already used".to_owned()))?;
    if invite.expires_at <= now {
        return Err(invalid("the join token has expired".to_owned()));
    }
    if invite.subject != *subject {
        let reason = format!("the join token is for another {}", subject.kind());
        return Err(invalid(reason).at(subject.kind(), subject));
    }
    check_inviter_now(state, &invite.inviter, invite.generation, subject)?;
    Ok(invite)
}

/// Refuses a token whose inviter may not invite the subject any more, was revoked since, or is suspended.
///
/// # Errors
/// [`Code::InvalidToken`].
pub(crate) fn check_inviter_now(
    state: &State,
    inviter: &Actor,
    generation: u64,
    subject: &InviteSubject,
) -> Result<(), Refusal> {
    let invalid = |reason: String| Err(Refusal::new(Code::InvalidToken, reason, subject.remedy()));
    let (name, kind) = (inviter.name(), subject.kind());
    if let Err(refusal) = state.check_standing(inviter, generation) {
        return invalid(format!("{name}, who made the join token, may not invite any more: {}", refusal.reason));
    }
    // A cluster that no document names any more has a better refusal.
    if is_in_policy(state, subject) && check_inviter(state, inviter, subject).is_err() {
        return invalid(format!("{name}, who made the join token, may not invite {kind} {subject} any more"));
    }
    Ok(())
}

/// Refuses an inviter whom the policy in force does not let invite the subject. Before the first bundle, the API alone
/// decides.
pub(crate) fn check_inviter(state: &State, inviter: &Actor, subject: &InviteSubject) -> Result<(), Refusal> {
    let (Some(record), Actor::User(user)) = (&state.policy, inviter) else { return Ok(()) };
    if may_invite(&record.bundle, user, subject) {
        return Ok(());
    }
    let reason = format!("{user} may not invite {} {subject}", subject.kind());
    let remedy = match subject {
        InviteSubject::Cluster(_) => "let an operator of the cluster's institution or a maintainer invite it",
        InviteSubject::User(name) if record.bundle.operates_brokers(name) => {
            "the user is a broker operator: let a maintainer who is one too invite the user"
        }
        InviteSubject::User(_) => "let a maintainer invite the user",
        InviteSubject::Broker(_) => "let one of the `brokerOperators` of the Federation document invite it",
    };
    Err(Refusal::new(Code::PermissionDenied, reason, remedy).at(subject.kind(), subject))
}

fn is_in_policy(state: &State, subject: &InviteSubject) -> bool {
    match (subject, &state.policy) {
        (InviteSubject::Cluster(cluster), Some(record)) => {
            record.bundle.institution_of_cluster(cluster.as_str()).is_some()
        }
        _ => true,
    }
}

fn may_invite(bundle: &Bundle, user: &str, subject: &InviteSubject) -> bool {
    match subject {
        InviteSubject::Cluster(cluster) => bundle.may_invite(user, cluster.as_str()),
        InviteSubject::User(name) => bundle.may_invite_user(user, name),
        InviteSubject::Broker(_) => bundle.roles_of(user).broker_operator,
    }
}

/// Whether the actor may see and revoke an invitation: its inviter, and everybody who may invite its subject.
#[must_use]
pub fn may_revoke(state: &State, actor: &Actor, invite: &Invite) -> bool {
    invite.inviter == *actor || check_inviter(state, actor, &invite.subject).is_ok()
}
