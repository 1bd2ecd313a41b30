//! Authenticates calling brokers of the federation, each for itself.

use std::time::SystemTime;

use comity_runtime::spiffe::TrustDomain;
use comity_runtime::tls::PeerInfo;
use tonic::{Extensions, Status};

use crate::transport::frame::Vouched;

/// An authenticated broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallingBroker(u64);

impl CallingBroker {
    /// From the identity that the TLS layer verified.
    pub(crate) fn of(extensions: &Extensions, trust_domain: &TrustDomain, now: SystemTime) -> Result<Self, Status> {
        let peer = extensions
            .get::<PeerInfo>()
            .ok_or_else(|| Status::unauthenticated("the connection does not say who the caller is"))?;
        let id =
            peer.spiffe.as_ref().ok_or_else(|| Status::unauthenticated("a broker's certificate is needed here"))?;
        if peer.has_expired(now) {
            return Err(Status::unauthenticated(format!("the certificate of {id} has ended; connect again")));
        }
        if !peer.is_trusted() {
            return Err(Status::unauthenticated(format!("the root that signed {id} was replaced; connect again")));
        }
        match id.as_broker() {
            Some(broker) if id.trust_domain() == trust_domain => Ok(Self(broker)),
            _ => Err(Status::permission_denied(format!("{id} is no broker of {trust_domain}"))),
        }
    }

    /// Its number.
    pub(crate) fn broker(self) -> u64 {
        self.0
    }

    /// Refuses a message in another broker's name.
    pub(crate) fn vouch(self, message: &impl Vouched) -> Result<(), Status> {
        self.is(message.sender())
    }

    /// Refuses a caller that claims another number.
    pub(crate) fn is(self, broker: u64) -> Result<(), Status> {
        if self.0 == broker {
            return Ok(());
        }
        Err(Status::permission_denied(format!("broker {} spoke for broker {broker}", self.0)))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tonic::Code;

    use super::*;

    fn caller(id: Option<&str>, not_after: Option<SystemTime>) -> Result<CallingBroker, Status> {
        let mut extensions = Extensions::new();
        extensions.insert(PeerInfo {
            spiffe: id.map(|id| id.parse().unwrap()),
            cert_not_after: not_after,
            ..PeerInfo::anonymous("127.0.0.1:1".parse().unwrap())
        });
        CallingBroker::of(&extensions, &TrustDomain::new("one.example").unwrap(), SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn only_brokers_of_the_federation_come_in() {
        assert_eq!(caller(Some("spiffe://one.example/broker/2"), None).unwrap(), CallingBroker(2));
        for (id, code) in [
            (None, Code::Unauthenticated),
            (Some("spiffe://one.example/cluster/a"), Code::PermissionDenied),
            (Some("spiffe://one.example/user/root"), Code::PermissionDenied),
            (Some("spiffe://two.example/broker/2"), Code::PermissionDenied),
        ] {
            assert_eq!(caller(id, None).unwrap_err().code(), code, "{id:?}");
        }
        let ended = caller(Some("spiffe://one.example/broker/2"), Some(SystemTime::UNIX_EPOCH)).unwrap_err();
        assert_eq!(ended.code(), Code::Unauthenticated);
        let trust_domain = TrustDomain::new("one.example").unwrap();
        let unknown = CallingBroker::of(&Extensions::new(), &trust_domain, SystemTime::UNIX_EPOCH).unwrap_err();
        assert_eq!(unknown.code(), Code::Unauthenticated);
    }

    #[test]
    fn a_broker_speaks_for_itself_only() {
        assert!(CallingBroker(2).is(2).is_ok());
        assert_eq!(CallingBroker(2).is(3).unwrap_err().code(), Code::PermissionDenied);
    }
}
