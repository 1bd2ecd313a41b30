//! Where the fabric forwards connections to, outside the tunnel; and whose connections.

pub mod client_check;

use std::fmt;
use std::net::SocketAddr;

/// A host and port, resolved for every connection so that it follows a service that moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardTarget {
    host: String,
    port: u16,
}

impl ForwardTarget {
    /// A host name or literal address, without brackets, and a port.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// Host name or address, and port.
    #[must_use]
    pub fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }
}

impl From<SocketAddr> for ForwardTarget {
    fn from(address: SocketAddr) -> Self {
        Self::new(address.ip().to_string(), address.port())
    }
}

impl fmt::Display for ForwardTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_ipv6_have_brackets() {
        assert_eq!(ForwardTarget::new("kubernetes.default.svc", 443).to_string(), "kubernetes.default.svc:443");
        assert_eq!(ForwardTarget::from(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 6443))).to_string(), "[::1]:6443");
    }
}
