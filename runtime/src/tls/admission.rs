//! Shares of a listener: how many connections one address or identity may have.

use thiserror::Error;

use super::keyed_slots::{HeldSlots, KeyedSlots, SlotLimit};
use super::peer::PeerInfo;
use super::source_address::SourceAddress;

/// Connections that one party may have.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionShares {
    /// Concurrent handshakes from one address.
    pub handshakes_per_address: usize,
    /// Connections without a client certificate from one address.
    pub anonymous_per_address: usize,
    /// Connections without a client certificate. Below the listener's limit, so that certificates always find room.
    pub anonymous: usize,
    /// Connections with certificates of one identity.
    pub per_identity: usize,
}

/// Whom a connection counts for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ConnectionHolder {
    Handshakes(SourceAddress),
    AnonymousFrom(SourceAddress),
    Anonymous,
    Identity(String),
}

/// A share is used up.
#[derive(Debug, Error)]
pub(super) enum ShareUsedUp {
    #[error("{most} TLS handshakes with {source_address} are under way, which is the limit of one address")]
    Handshakes { source_address: SourceAddress, most: usize },
    #[error("{source_address} has {most} connections without a certificate, which is the limit of one address")]
    AnonymousFrom { source_address: SourceAddress, most: usize },
    #[error("{most} connections without a certificate are open, which is the limit of this port")]
    Anonymous { most: usize },
    #[error("{identity} has {most} connections, which is the limit of one identity")]
    Identity { identity: String, most: usize },
}

/// Counts the connections of a listener. Clones share the counts.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    shares: ConnectionShares,
    held: KeyedSlots<ConnectionHolder>,
}

/// A connection's part of the shares; released on drop.
pub(super) type ConnectionSlots = HeldSlots<ConnectionHolder>;

impl Admission {
    pub(super) fn new(shares: ConnectionShares) -> Self {
        Self { shares, held: KeyedSlots::default() }
    }

    /// Admits a handshake.
    pub(super) fn handshake(&self, source: SourceAddress) -> Result<ConnectionSlots, ShareUsedUp> {
        self.take([(ConnectionHolder::Handshakes(source), self.shares.handshakes_per_address)])
    }

    /// Admits a connection after its handshake.
    pub(super) fn connection(&self, peer: &PeerInfo) -> Result<ConnectionSlots, ShareUsedUp> {
        match &peer.spiffe {
            Some(identity) => self.take([(ConnectionHolder::Identity(identity.to_string()), self.shares.per_identity)]),
            None => {
                let source = SourceAddress::of(peer.remote_addr.ip());
                self.take([
                    (ConnectionHolder::AnonymousFrom(source), self.shares.anonymous_per_address),
                    (ConnectionHolder::Anonymous, self.shares.anonymous),
                ])
            }
        }
    }

    fn take<const N: usize>(&self, limits: [(ConnectionHolder, usize); N]) -> Result<ConnectionSlots, ShareUsedUp> {
        let limits = limits.map(|(key, most)| SlotLimit { key, most });
        self.held.take(limits).map_err(|SlotLimit { key, most }| match key {
            ConnectionHolder::Handshakes(source_address) => ShareUsedUp::Handshakes { source_address, most },
            ConnectionHolder::AnonymousFrom(source_address) => ShareUsedUp::AnonymousFrom { source_address, most },
            ConnectionHolder::Anonymous => ShareUsedUp::Anonymous { most },
            ConnectionHolder::Identity(identity) => ShareUsedUp::Identity { identity, most },
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const SHARES: ConnectionShares =
        ConnectionShares { handshakes_per_address: 2, anonymous_per_address: 2, anonymous: 3, per_identity: 2 };

    fn peer(address: &str, identity: Option<&str>) -> PeerInfo {
        let remote_addr = (address.parse::<std::net::IpAddr>().unwrap(), 1).into();
        PeerInfo { spiffe: identity.map(|id| id.parse().unwrap()), ..PeerInfo::anonymous(remote_addr) }
    }

    #[test]
    fn an_address_has_a_share_of_the_anonymous_connections() {
        let admission = Admission::new(SHARES);
        let refused = |address: &str| admission.connection(&peer(address, None)).unwrap_err().to_string();
        // Addresses of one network count together.
        let _one = admission.connection(&peer("2001:db8::1", None)).unwrap();
        let two = admission.connection(&peer("2001:db8::2", None)).unwrap();
        let expected = "2001:db8::/64 has 2 connections without a certificate, which is the limit of one address";
        assert_eq!(refused("2001:db8::3"), expected);
        let _three = admission.connection(&peer("192.0.2.1", None)).unwrap();
        assert_eq!(
            refused("192.0.2.2"),
            "3 connections without a certificate are open, which is the limit of this port"
        );
        drop(two);
        admission.connection(&peer("192.0.2.2", None)).unwrap();
    }

    #[test]
    fn certificates_find_room_whatever_others_hold() {
        let admission = Admission::new(SHARES);
        let _anonymous: Vec<_> =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|it| admission.connection(&peer(it, None)).unwrap()).into();
        let alice = Some("spiffe://dev.test/user/alice");
        let _alice = [(); 2].map(|()| admission.connection(&peer("192.0.2.1", alice)).unwrap());
        assert_eq!(
            admission.connection(&peer("192.0.2.1", alice)).unwrap_err().to_string(),
            "spiffe://dev.test/user/alice has 2 connections, which is the limit of one identity"
        );
        admission.connection(&peer("192.0.2.1", Some("spiffe://dev.test/user/bob"))).unwrap();
    }

    #[test]
    fn an_address_has_a_share_of_the_handshakes() {
        let admission = Admission::new(SHARES);
        let source = |address: &str| SourceAddress::of(address.parse().unwrap());
        let _two = [(); 2].map(|()| admission.handshake(source("192.0.2.1")).unwrap());
        assert_eq!(
            admission.handshake(source("192.0.2.1")).unwrap_err().to_string(),
            "2 TLS handshakes with 192.0.2.1 are under way, which is the limit of one address"
        );
        admission.handshake(source("192.0.2.2")).unwrap();
    }
}
