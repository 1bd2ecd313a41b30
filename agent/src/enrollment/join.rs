//! Exchanges a join token for an identity, over a connection whose root certificate the token pins.

use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::atomic_file::{self, FileError};
use comity_runtime::ca::CaError;
use comity_runtime::identity::IdentityError;
use comity_runtime::join_token::JoinTokenError;
use comity_runtime::telemetry::TraceInjector;
use comity_runtime::tls::{self, ConnectError, EndpointError};
use comity_runtime::{
    Backoff, BrokerEndpoints, ClientTls, Clock, ClusterName, Entropy, IdentityDir, IdentityKey, IdentityPem,
    IdentitySignature, JoinToken, KeyAndCsr, Roots, TlsIdentity,
};
use zeroize::Zeroizing;

/// Purpose of the identity key's signature over the CSR.
const JOIN_DOMAIN: &str = "join-csr";
/// How long joining is retried while no broker answers; a starting group takes seconds.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Shortest and longest pause between tries.
const JOIN_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
const TOKEN_FILE_MAX_BYTES: u64 = 16 << 10;

/// Why an agent has no identity.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No identity and no token.
    #[error("{state} holds no identity of a member cluster: give a join token (from `comity cluster invite`) with \
        --join-token", state = .state.display())]
    NoToken {
        /// The state folder.
        state: PathBuf,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The token is invalid.
    #[error("{path}: {source}", path = .path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: JoinTokenError,
    },
    /// No key could be made.
    #[error(transparent)]
    Key(#[from] CaError),
    /// The identity on disk, or the received one, is invalid.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The list of brokers is invalid.
    #[error(transparent)]
    Brokers(#[from] EndpointError),
    /// A broker refused.
    #[error("the broker refused to let {cluster} join: {reason}")]
    Refused {
        /// The cluster.
        cluster: String,
        /// Its reason.
        reason: String,
    },
    /// The server that answers is not a broker of the token's federation.
    #[error(
        "the join token is for federation {federation}, and none of the brokers that it names ({brokers}) belongs to \
         it: {reason}; ask for a new token"
    )]
    SomebodyElse {
        /// The federation of the token.
        federation: String,
        /// Its brokers.
        brokers: String,
        /// The error of the first one.
        reason: String,
    },
    /// No broker answered.
    #[error("no broker answered within {}s: {reason}", JOIN_TIMEOUT.as_secs())]
    Unreachable {
        /// The last failure.
        reason: String,
    },
}

/// An agent's membership in its federation.
#[derive(Debug)]
pub struct Membership {
    /// Where the identity is kept.
    pub directory: IdentityDir,
    /// The identity now.
    pub identity: TlsIdentity,
    /// Brokers to speak to.
    pub brokers: BrokerEndpoints,
}

/// Input of [`join_or_load`].
#[derive(Clone, Copy)]
pub struct JoinInput<'a> {
    /// The state folder.
    pub state: &'a Path,
    /// File with a join token.
    pub token: Option<&'a Path>,
    /// Configured brokers; empty: those of the token.
    pub brokers: &'a [String],
    /// This agent's identity key.
    pub key: &'a IdentityKey,
    /// The institution's signature over it.
    pub voucher: Option<&'a IdentitySignature>,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Randomness.
    pub entropy: &'a dyn Entropy,
}

/// Reads the identity, or joins by the token if there is none. With an identity the token is ignored.
///
/// # Errors
/// [`JoinError`].
pub async fn join_or_load(input: JoinInput<'_>) -> Result<Membership, JoinError> {
    let JoinInput { state, brokers, .. } = input;
    let directory = IdentityDir::new(state.join("identity"));
    let list = state.join("brokers");
    if !directory.exists() {
        let path = input.token.ok_or_else(|| JoinError::NoToken { state: state.to_owned() })?;
        let text = Zeroizing::new(atomic_file::read_bounded(path, TOKEN_FILE_MAX_BYTES)?);
        let damaged = |source| JoinError::Token { path: path.to_owned(), source };
        let token: JoinToken = String::from_utf8_lossy(&text).parse().map_err(damaged)?;
        let cluster = token.cluster().map_err(damaged)?;
        // Written before the identity, so that a restart in between joins again instead of finding no brokers.
        atomic_file::write(&list, token.brokers.to_string().as_bytes(), atomic_file::PRIVATE)?;
        let pem = join(&token, cluster, &input).await?;
        directory.save(&pem)?;
        tracing::info!(%cluster, federation = %token.id.trust_domain(), "joined the federation");
    }
    let (_, identity) = directory.load()?;
    let brokers = match brokers {
        [] => String::from_utf8_lossy(&atomic_file::read_bounded(&list, TOKEN_FILE_MAX_BYTES)?).parse()?,
        brokers => BrokerEndpoints::new(brokers)?,
    };
    Ok(Membership { directory, identity, brokers })
}

async fn join(token: &JoinToken, cluster: &ClusterName, input: &JoinInput<'_>) -> Result<IdentityPem, JoinError> {
    let &JoinInput { key, voucher, clock, entropy, .. } = input;
    let fresh = KeyAndCsr::generate()?;
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
    let pem = IdentityPem { key: fresh.key_pem, chain: joined.certificate_pem, ca: joined.ca_pem };
    Roots::from_pem_pinned(&pem.ca, &token.ca_sha256)?;
    Ok(pem)
}

fn is_temporary(status: &tonic::Status) -> bool {
    matches!(status.code(), tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::DeadlineExceeded)
}
