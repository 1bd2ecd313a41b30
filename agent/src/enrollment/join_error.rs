//! Why an agent has no identity.

use std::path::PathBuf;
use std::time::Duration;

use comity_agent_state::store::StoreError;
use comity_runtime::atomic_file::FileError;
use comity_runtime::identity::IdentityError;
use comity_runtime::join_token::{JoinTokenError, PendingKeyError};
use comity_runtime::tls::EndpointError;

/// How long joining is retried while no broker answers; a starting group takes seconds.
pub(super) const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Why an agent has no identity.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No identity and no token.
    #[error("{state} holds no identity of a member cluster: get a token with `comity cluster invite`, and run \
        `comity-agent join TOKEN`", state = .state.display())]
    NoToken {
        /// The state folder.
        state: PathBuf,
    },
    /// The token is for another cluster than the state folder.
    #[error(
        "{state} belongs to {owner}, and the join token is for {invited}: give each cluster a state directory of its \
         own with --state DIR, or move this one away", state = .state.display()
    )]
    OtherMember {
        /// The state folder.
        state: PathBuf,
        /// SPIFFE id of the cluster whose identity is in it.
        owner: String,
        /// SPIFFE id in the token.
        invited: String,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The token is invalid.
    #[error("{origin}: {source}")]
    Token {
        /// Where the token comes from.
        origin: String,
        /// The cause.
        #[source]
        source: JoinTokenError,
    },
    /// There is no key to join with; the token is not used.
    #[error(transparent)]
    Key(#[from] PendingKeyError),
    /// The key is not in the state copy; the token is not used.
    #[error("{0}; the join token was not sent")]
    Copy(#[from] StoreError),
    /// The certificate came and cannot be stored.
    #[error(
        "cluster {cluster} joined, but its certificate is not saved: {source}; free the disk and repeat the command \
         with the same token within a day: the brokers issue the certificate again to the key in {}", key.display()
    )]
    NotSaved {
        /// The cluster.
        cluster: String,
        /// File with the key.
        key: PathBuf,
        /// The error.
        #[source]
        source: IdentityError,
    },
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
