//! What a revocation ends, and how soon it must.

use std::fmt;
use std::time::Duration;

/// What the subject loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    /// Its open streams and watches, on every broker.
    Streams,
    /// Further calls, on every broker.
    Calls,
    /// Answers through the tunnel of the lease.
    Tunnel,
    /// What its token may do at the donor's API server.
    Rights,
    /// The token itself: the donor's API server knows nobody by it.
    Token,
    /// The namespace of the lease, with its quota and its pod.
    Namespace,
    /// The Secret with the kubeconfig of the lease, on the origin.
    Kubeconfig,
}

impl Effect {
    /// The longest time that it may take.
    pub(super) const fn limit(self) -> Duration {
        match self {
            Self::Streams | Self::Calls => Duration::from_secs(5),
            Self::Tunnel | Self::Rights | Self::Token | Self::Namespace | Self::Kubeconfig => Duration::from_secs(10),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Streams => "streams",
            Self::Calls => "calls",
            Self::Tunnel => "tunnel",
            Self::Rights => "rights",
            Self::Token => "token",
            Self::Namespace => "namespace",
            Self::Kubeconfig => "kubeconfig",
        })
    }
}
