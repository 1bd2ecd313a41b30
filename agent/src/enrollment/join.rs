//! Exchanges a join token for an identity, over a connection whose root certificate the token pins.

use std::path::Path;
use std::time::Duration;

use comity_agent_state::store::{Store, other_owner};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::atomic_file::{self, PRIVATE};
use comity_runtime::identity::IdentityError;
use comity_runtime::join_token::PendingKey;
use comity_runtime::telemetry::TraceInjector;
use comity_runtime::tls::{self, ConnectError};
use comity_runtime::{
    Backoff, ClientTls, Clock, ClusterName, Entropy, IdentityDir, IdentityKey, IdentityPem, IdentitySignature,
    JoinToken, KeyAndCsr, KnownBrokers, Roots, TlsIdentity,
};

use super::join_error::{JOIN_TIMEOUT, JoinError};
use super::member_brokers::{brokers_of_member, keep_joined};
use super::token_source::JoinTokenSource;

/// Purpose of the identity key's signature over the CSR.
const JOIN_DOMAIN: &str = "join-csr";
/// File in the identity's folder with the hash of the token that brought it, which brokers store as well.
const USED_TOKEN_FILE: &str = "used-token";
/// Bytes of it, at most.
const USED_TOKEN_MAX_BYTES: u64 = 64;
/// Shortest and longest pause between tries.
const JOIN_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// An agent's membership in its federation.
#[derive(Debug)]
pub struct Membership {
    /// Where the identity is kept.
    pub directory: IdentityDir,
    /// The identity now.
    pub identity: TlsIdentity,
    /// Brokers to speak to.
    pub brokers: KnownBrokers,
}

/// What a refused token means to a cluster that has an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedToken {
    /// An error.
    Fails,
    /// A warning: the identity stays in use.
    IsIgnored,
}

/// Input of [`join_or_load`].
#[derive(Clone, Copy)]
pub struct JoinInput<'a> {
    /// The state folder.
    pub state: &'a Path,
    /// Source of the join token.
    pub token: Option<&'a JoinTokenSource>,
    /// What a refusal of it means if there is an identity.
    pub refused: RefusedToken,
    /// Configured brokers; empty: those of the token.
    pub brokers: &'a [String],
    /// This agent's identity key.
    pub key: &'a IdentityKey,
    /// The store whose copy gets the key before the token is spent.
    pub store: Option<&'a Store>,
    /// The institution's signature over it.
    pub voucher: Option<&'a IdentitySignature>,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Randomness.
    pub entropy: &'a dyn Entropy,
}

/// Reads the identity. Joins by the token if there is none, or if the token is another one than that of the last join:
/// an evicted cluster joins again so. The token of the last join is ignored, and so is one that cannot be read.
///
/// # Errors
/// [`JoinError`].
pub async fn join_or_load(input: JoinInput<'_>) -> Result<Membership, JoinError> {
    let JoinInput { state, brokers, .. } = input;
    let directory = IdentityDir::new(state.join("identity"));
    if !directory.exists() {
        let source = input.token.ok_or_else(|| JoinError::NoToken { state: state.to_owned() })?;
        spend(&directory, source, &source.read()?, &input).await?;
    } else if let Some((source, token)) = unused_token(&directory, input.token) {
        match spend(&directory, source, &token, &input).await {
            Err(error) if input.refused == RefusedToken::IsIgnored => {
                tracing::warn!(%error, "the join token is not used, and the identity stays in use");
            }
            spent => spent?,
        }
    }
    let (_, identity) = directory.load()?;
    Ok(Membership { directory, identity, brokers: brokers_of_member(state, brokers)? })
}

/// Whether [`join_or_load`] would use a token: it is another one than that of the last join.
#[must_use]
pub fn is_to_join(state: &Path, token: Option<&JoinTokenSource>) -> bool {
    let directory = IdentityDir::new(state.join("identity"));
    !directory.exists() || unused_token(&directory, token).is_some()
}

/// A readable token that did not bring the identity in `directory`.
fn unused_token<'a>(
    directory: &IdentityDir,
    source: Option<&'a JoinTokenSource>,
) -> Option<(&'a JoinTokenSource, JoinToken)> {
    let source = source?;
    let token = source.read().ok()?;
    let used = atomic_file::read_bounded(&directory.path().join(USED_TOKEN_FILE), USED_TOKEN_MAX_BYTES).ok();
    (used.as_deref() != Some(&token.secret_hash()[..])).then_some((source, token))
}

/// Refuses a token for another cluster than the one whose identity or records are in the state folder.
///
/// # Errors
/// [`JoinError::OtherMember`], or the records cannot be read.
pub fn check_owner(state: &Path, token: &JoinToken) -> Result<(), JoinError> {
    let directory = IdentityDir::new(state.join("identity"));
    if directory.exists()
        && let Ok((_, identity)) = directory.load()
        && *identity.id() != token.id
    {
        let (owner, invited) = (identity.id().to_string(), token.id.to_string());
        return Err(JoinError::OtherMember { state: state.to_owned(), owner, invited });
    }
    Ok(other_owner(state, Store::owner_of(state)?, &token.id.to_string())?)
}

/// Joins by a token, and stores the identity.
async fn spend(
    directory: &IdentityDir,
    source: &JoinTokenSource,
    token: &JoinToken,
    input: &JoinInput<'_>,
) -> Result<(), JoinError> {
    let of_another = |error| JoinError::Token { origin: source.to_string(), source: error };
    let cluster = token.cluster().map_err(of_another)?;
    check_owner(input.state, token)?;
    let pending = PendingKey::open(directory.path(), token)?;
    if let Some(store) = input.store {
        store.check_owner(&token.id.to_string())?;
        // A broker issues the certificate again to the same key, so a successor with this copy resumes the join.
        store.write_copy().await?;
    }
    let pem = join(token, cluster, &pending.fresh, input).await?;
    let not_saved = |source: IdentityError| JoinError::NotSaved {
        cluster: cluster.to_string(),
        key: pending.path().to_owned(),
        source,
    };
    // Written before the identity, so that a restart in between joins again instead of finding no brokers.
    keep_joined(input.state, &token.brokers).map_err(|error| not_saved(error.into()))?;
    directory.save(&pem).map_err(not_saved)?;
    let used = directory.path().join(USED_TOKEN_FILE);
    atomic_file::write(&used, &token.secret_hash(), PRIVATE).map_err(|error| not_saved(error.into()))?;
    pending.forget();
    tracing::info!(%cluster, federation = %token.id.trust_domain(), "joined the federation");
    Ok(())
}

async fn join(
    token: &JoinToken,
    cluster: &ClusterName,
    fresh: &KeyAndCsr,
    input: &JoinInput<'_>,
) -> Result<IdentityPem, JoinError> {
    let &JoinInput { key, voucher, clock, entropy, .. } = input;
    let request = v1::JoinRequest {
        cluster: cluster.to_string(),
        secret: token.secret.expose().to_vec(),
        csr_der: fresh.csr.as_bytes().to_vec(),
        identity_key: key.public().to_string(),
        voucher: voucher.map(|voucher| voucher.as_bytes().to_vec()).unwrap_or_default(),
        identity_proof: key.sign(JOIN_DOMAIN, &[fresh.csr.as_bytes()]).as_bytes().to_vec(),
    };
    let tls = ClientTls::pinned(token.ca_sha256, token.id.trust_domain().clone());
    let channel = tls::connect(&token.brokers, &tls);
    let mut client = FederationServiceClient::with_interceptor(channel, TraceInjector);
    let start = clock.elapsed();
    let mut backoff = Backoff::new(JOIN_BACKOFF.0, JOIN_BACKOFF.1);
    let mut logged = String::new();
    let joined = loop {
        let status = match client.join(request.clone()).await {
            Ok(joined) => break joined.into_inner(),
            Err(status) => status,
        };
        if let Some(reason) = ConnectError::behind(&status).and_then(ConnectError::somebody_else) {
            return Err(JoinError::SomebodyElse {
                federation: token.id.trust_domain().to_string(),
                brokers: token.brokers.to_string(),
                reason: reason.to_owned(),
            });
        }
        if !is_temporary(&status) {
            let reason = status.message().to_owned();
            return Err(JoinError::Refused { cluster: cluster.to_string(), reason });
        }
        let reason = status.message().to_owned();
        if clock.elapsed().saturating_sub(start) >= JOIN_TIMEOUT {
            return Err(JoinError::Unreachable { reason });
        }
        if reason != logged {
            tracing::info!(reason, "no broker has admitted this cluster yet");
            logged = reason;
        }
        clock.sleep(backoff.next_delay(entropy).max(JOIN_BACKOFF.0)).await;
    };
    let pem = IdentityPem { key: fresh.key_pem.clone(), chain: joined.certificate_pem, ca: joined.ca_pem };
    Roots::from_pem_pinned(&pem.ca, token.id.trust_domain(), &token.ca_sha256)?;
    Ok(pem)
}

fn is_temporary(status: &tonic::Status) -> bool {
    matches!(status.code(), tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::DeadlineExceeded)
}
