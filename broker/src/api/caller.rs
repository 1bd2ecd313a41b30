//! The authenticated caller: the SPIFFE id of its verified certificate.

use std::time::SystemTime;

use comity_core::Actor;
use comity_runtime::spiffe::{SpiffeId, SpiffeKind};
use comity_runtime::tls::PeerInfo;
use comity_types::ClusterId;

use crate::api::rpc_error::RpcError;

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Showed no certificate.
    Anonymous,
    /// A person or program, and the generation of its certificate.
    User(SpiffeId, u64),
    /// A cluster's agent, and the generation of its certificate.
    Cluster(SpiffeId, ClusterId, u64),
    /// Another broker of the group.
    Broker(SpiffeId),
}

impl Caller {
    /// From the TLS handshake; refuses a certificate that has expired since.
    pub fn of(peer: Option<&PeerInfo>, now: SystemTime) -> Result<Self, RpcError> {
        let Some(PeerInfo { spiffe: Some(id), generation, .. }) = peer else { return Ok(Self::Anonymous) };
        if peer.is_some_and(|peer| peer.has_expired(now)) {
            return Err(RpcError::Unauthenticated {
                reason: "the certificate of this connection has ended",
                remedy: "connect again with a fresh certificate; if there is none, join again or ask for a new one; if \
                         it is still good by your clock, look at log time: `comity raft rebase-time`",
            });
        }
        if peer.is_some_and(|peer| !peer.is_trusted()) {
            return Err(RpcError::Unauthenticated {
                reason: "the root that signed the certificate of this connection was replaced",
                remedy: "connect again with a certificate of the next root; if there is none, join again or ask for a \
                         new one",
            });
        }
        Ok(match id.kind() {
            SpiffeKind::Broker(_) => Self::Broker(id.clone()),
            SpiffeKind::User(_) => Self::User(id.clone(), *generation),
            SpiffeKind::Cluster(name) => {
                Self::Cluster(id.clone(), ClusterId::parse(name.as_str(), "certificate")?, *generation)
            }
        })
    }

    /// For logs and idempotency records.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Anonymous => "anonymous".to_owned(),
            Self::User(id, _) | Self::Cluster(id, ..) | Self::Broker(id) => id.to_string(),
        }
    }

    /// The calling cluster, if it is one.
    #[must_use]
    pub fn cluster(&self) -> Option<&ClusterId> {
        match self {
            Self::Cluster(_, cluster, _) => Some(cluster),
            Self::Anonymous | Self::User(..) | Self::Broker(_) => None,
        }
    }

    /// The actor in log entries.
    #[must_use]
    pub fn actor(&self) -> Actor {
        match self {
            Self::Cluster(_, cluster, _) => Actor::Cluster(cluster.clone()),
            other => Actor::User(other.name()),
        }
    }

    /// Generation of the caller's certificate; 0 without one, and for brokers, whose certificates have none.
    #[must_use]
    pub fn generation(&self) -> u64 {
        match self {
            Self::User(_, generation) | Self::Cluster(.., generation) => *generation,
            Self::Anonymous | Self::Broker(_) => 0,
        }
    }
}
