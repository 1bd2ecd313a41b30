//! The user who submits requests: alice of the tenant poly-ml.

use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::KeyAndCsr;
use comity_runtime::join_token::JoinToken;

use super::patience::patiently;
use super::timeline::Timeline;
use crate::commands::login;
use crate::failure::Failure;
use crate::session::{Session, call, idempotency_key};

/// Name of the user.
pub(super) const ALICE: &str = "alice";
/// Code of a refusal because a certificate is void or an institution suspended.
pub(crate) const REVOKED: &str = "revoked";
const OTHER_STATE: &str =
    "start with another --state directory: an earlier run revoked or suspended who is needed here";

/// Gives alice a new certificate if an earlier run with this state revoked hers, as a maintainer would: those that the
/// authority's key alone makes stay void. `session` opens a session of alice.
pub(super) async fn let_in_again(
    session: impl Fn() -> Session,
    maintainer: &Session,
    timeline: &Timeline,
) -> Result<(), Failure> {
    let alice = session();
    if !is_revoked(&alice, timeline).await? {
        return Ok(());
    }
    let mut client = FederationServiceClient::new(maintainer.channel()?);
    let request = v1::InviteUserRequest { user: ALICE.to_owned(), ttl_ms: 0, idempotency_key: idempotency_key(None) };
    let invited = patiently(timeline, "an invitation", async || call(client.invite_user(request.clone())).await);
    let token: JoinToken = invited.await?.token.parse().map_err(|error| failed(&error))?;
    let fresh = KeyAndCsr::generate().map_err(|error| failed(&error))?;
    let identity = login::join(&token, &token.brokers, &fresh).await?;
    alice.identity_dir()?.save(&identity).map_err(|error| failed(&error))?;
    timeline.note(&format!("the certificates of {ALICE} were revoked in an earlier run: she has a new one"));
    // A session keeps the identity that it read.
    if is_revoked(&session(), timeline).await? {
        let reason = format!("{ALICE} has a new certificate, and the brokers refuse it");
        return Err(Failure::refused(REVOKED, reason).remedy(OTHER_STATE));
    }
    Ok(())
}

/// Tells what to do where the brokers refuse ingrid, who alone could let anybody in again.
pub(super) fn advise_another_state(failure: Failure) -> Failure {
    if failure.code == REVOKED { failure.remedy(OTHER_STATE) } else { failure }
}

async fn is_revoked(alice: &Session, timeline: &Timeline) -> Result<bool, Failure> {
    let mut client = FederationServiceClient::new(alice.channel()?);
    let asked = patiently(timeline, "an answer to alice", async || call(client.who_am_i(v1::WhoAmIRequest {})).await);
    match asked.await {
        Ok(_) => Ok(false),
        Err(failure) if failure.code == REVOKED => Ok(true),
        Err(failure) => Err(failure),
    }
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::refused("identity-failed", format!("{ALICE} gets no new certificate: {error}"))
}
