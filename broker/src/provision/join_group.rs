//! Sets up a broker with a join token: gets the federation's authority and the group's members from a broker that runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::atomic_file::{self, FileError};
use comity_runtime::ca::CertificateAuthority;
use comity_runtime::entropy::{Entropy as _, SystemEntropy};
use comity_runtime::identity::{IdentityError, RootHash};
use comity_runtime::join_token::{JoinToken, JoinTokenError};
use comity_runtime::sealing::Sealed;
use comity_runtime::tls::{self, ClientTls};
use tonic::{Code, Status};
use zeroize::Zeroizing;

use crate::config::{ConfigError, Settings, ca_dir};
use crate::group::MemberAddress;
use crate::provision::sealed_authority::{GroupSecrets, SEALING_SEED_BYTES, SealedAuthorityError, SealingKey};
use crate::provision::staging::Staging;
use crate::provision::{ProvisionError, broker_identity, empty};

/// How long joining is retried while no broker answers.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between tries.
const JOIN_PAUSE: Duration = Duration::from_millis(500);

/// Why a broker did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinGroupError {
    /// The token is for a cluster or user.
    #[error(transparent)]
    Token(#[from] JoinTokenError),
    /// The group refused.
    #[error("the group refused broker {broker}: {reason}")]
    Refused {
        /// Its number.
        broker: u64,
        /// The refusal.
        reason: String,
    },
    /// No broker answered in time.
    #[error("no broker of the group at {brokers} answered within {} s: {reason}", JOIN_TIMEOUT.as_secs())]
    Unreachable {
        /// Addresses in the token.
        brokers: String,
        /// The last error.
        reason: String,
    },
    /// The authority cannot be opened.
    #[error(transparent)]
    Sealed(#[from] SealedAuthorityError),
    /// The authority is not that of the token.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The data directory.
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    /// The data directory cannot be written, and the token is not used.
    #[error(
        "{source}; the join token was not sent: free the disk or make the directory writable, and repeat the command"
    )]
    NotUsed {
        /// The error.
        #[source]
        source: FileError,
    },
    /// The token is used up, but the data directory is incomplete.
    #[error(
        "broker {broker} joined, but {path} cannot be written: {source}; free the disk and repeat the command with the \
         same token within a day: it continues; or join with the token of `comity raft invite {broker} --replace`",
        path = .path.display()
    )]
    NotStored {
        /// Its number.
        broker: u64,
        /// The data directory.
        path: PathBuf,
        /// The error.
        #[source]
        source: ProvisionError,
    },
}

/// Joins the group of `token` as the broker at `address`, and fills the data directory. The broker then starts as any
/// other; the leader admits it, and lets it vote once it has caught up.
///
/// # Errors
/// [`JoinGroupError`]; what exists in `data` is never overwritten.
pub async fn join_group(token: &JoinToken, data: &Path, address: &MemberAddress) -> Result<Settings, JoinGroupError> {
    let broker = token.broker()?;
    empty(data)?;
    let unused = |source: FileError| JoinGroupError::NotUsed { source };
    let seed_file = seed_file(token);
    let staging = Staging::begin(data, &[&seed_file]).map_err(unused)?;
    // On disk before the token is spent: the group seals the authority again to the same key.
    let sealing = SealingKey::of_seed(seed(&staging.path().join(&seed_file)).map_err(unused)?);
    let request = v1::JoinBrokerRequest {
        broker,
        secret: token.secret.expose().to_vec(),
        sealing_key: sealing.public().to_vec(),
        raft_address: address.raft.clone(),
        client_address: address.client.clone(),
    };
    let joined = call(token, request, broker).await?;
    let sealed = Sealed { encapsulated_key: joined.encapsulated_key, ciphertext: joined.sealed_authority };
    let GroupSecrets { authority, invitation_key } = sealing.open(&sealed, &joined.ca_pem, &token.id)?;
    check_pin(token.ca_sha256, &authority)?;
    let member = |member: v1::RaftMember| {
        (member.id, MemberAddress { raft: member.raft_address, client: member.client_address })
    };
    let mut members: BTreeMap<u64, MemberAddress> = joined.members.into_iter().map(member).collect();
    members.insert(broker, address.clone());
    let settings = Settings { id: broker, members, bootstrap_admins: BTreeSet::new(), hosts: BTreeSet::new() };
    let store = || {
        settings.check()?;
        authority.save(&ca_dir(&staging.path()))?;
        invitation_key.save(&staging.path()).map_err(ConfigError::from)?;
        broker_identity(&authority, &settings, &staging.path())?;
        Ok(staging.publish(&[&seed_file]).map_err(ConfigError::from)?)
    };
    store().map_err(|source| JoinGroupError::NotStored { broker, path: data.to_owned(), source })?;
    Ok(settings)
}

/// Name of the file with the seed of the key to which the authority is sealed.
fn seed_file(token: &JoinToken) -> String {
    format!("sealing-seed-{}", &hex::encode(token.secret_hash())[..16])
}

/// The seed in a file, which an interrupted call may have written.
fn seed(path: &Path) -> Result<Zeroizing<[u8; SEALING_SEED_BYTES]>, FileError> {
    let mut seed = Zeroizing::new([0; SEALING_SEED_BYTES]);
    match atomic_file::read_bounded(path, SEALING_SEED_BYTES as u64).map(Zeroizing::new) {
        Ok(stored) if stored.len() == SEALING_SEED_BYTES => seed.copy_from_slice(&stored),
        _ => {
            SystemEntropy.fill(seed.as_mut_slice());
            atomic_file::write(path, seed.as_slice(), atomic_file::PRIVATE)?;
        }
    }
    Ok(seed)
}

fn check_pin(expected: RootHash, ca: &CertificateAuthority) -> Result<(), IdentityError> {
    // Of two roots, the one that the token pins may be the old one.
    let found = ca.root_sha256();
    if ca.roots().contains(&expected) { Ok(()) } else { Err(IdentityError::Pin { expected, found }) }
}

/// Repeats the same call until a broker answers it; the group answers a repeated call alike.
async fn call(
    token: &JoinToken,
    request: v1::JoinBrokerRequest,
    broker: u64,
) -> Result<v1::JoinBrokerResponse, JoinGroupError> {
    let tls = ClientTls::pinned(token.ca_sha256, token.id.trust_domain().clone());
    let mut client = FederationServiceClient::new(tls::connect(&token.brokers, &tls));
    let began = Instant::now();
    loop {
        let status = match client.join_broker(request.clone()).await {
            Ok(joined) => return Ok(joined.into_inner()),
            Err(status) => status,
        };
        let reason = status.message().to_owned();
        if !is_temporary(&status) {
            return Err(JoinGroupError::Refused { broker, reason });
        }
        if began.elapsed() > JOIN_TIMEOUT {
            return Err(JoinGroupError::Unreachable { brokers: token.brokers.to_string(), reason });
        }
        tokio::time::sleep(JOIN_PAUSE).await;
    }
}

fn is_temporary(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::ResourceExhausted)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::SystemTime;

    use comity_runtime::spiffe::TrustDomain;

    use super::*;

    #[test]
    fn an_authority_that_the_token_does_not_pin_is_refused() {
        let make = || CertificateAuthority::create(TrustDomain::new("dev.test").unwrap(), SystemTime::now()).unwrap();
        let (ca, other) = (make(), make());
        check_pin(ca.root_sha256(), &ca).unwrap();
        assert!(matches!(check_pin(ca.root_sha256(), &other), Err(IdentityError::Pin { .. })));
    }

    #[tokio::test]
    async fn tokens_of_clusters_and_used_directories_are_refused_before_any_call() {
        let home = tempfile::tempdir().unwrap();
        let token = |id: &str| {
            let (brokers, hash) = ("127.0.0.1:1".parse().unwrap(), "ab".repeat(32).parse().unwrap());
            JoinToken::generate(brokers, hash, id.parse().unwrap(), &SystemEntropy)
        };
        let address = MemberAddress { raft: "a:7444".to_owned(), client: "a:7443".to_owned() };
        let error = join_group(&token("spiffe://dev.test/cluster/a"), home.path(), &address).await.unwrap_err();
        assert!(error.to_string().contains("comity raft invite"), "{error}");
        std::fs::write(home.path().join("file"), "").unwrap();
        let error = join_group(&token("spiffe://dev.test/broker/2"), home.path(), &address).await.unwrap_err();
        assert!(matches!(error, JoinGroupError::Provision(ProvisionError::Exists { .. })), "{error}");
    }
}
