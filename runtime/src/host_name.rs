//! Host names in certificates, for clients that check them. Comity's clients check SPIFFE ids instead.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The text is neither a DNS name nor an IP address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is neither a DNS name nor an IP address; write it without scheme and port, as in broker.example.org")]
pub struct InvalidHostName(String);

/// A DNS name in lower case, or an IP address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(Name);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Name {
    Dns(String),
    Ip(IpAddr),
}

impl HostName {
    /// The host of a `host:port`; `None` if a certificate cannot name it.
    #[must_use]
    pub fn of_address(address: &str) -> Option<Self> {
        let (host, _port) = address.rsplit_once(':')?;
        host.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }

    /// The DNS name, if it is one.
    #[must_use]
    pub fn dns(&self) -> Option<&str> {
        match &self.0 {
            Name::Dns(name) => Some(name),
            Name::Ip(_) => None,
        }
    }

    /// The IP address, if it is one.
    #[must_use]
    pub const fn ip(&self) -> Option<IpAddr> {
        match &self.0 {
            Name::Dns(_) => None,
            Name::Ip(ip) => Some(*ip),
        }
    }
}

impl FromStr for HostName {
    type Err = InvalidHostName;

    fn from_str(text: &str) -> Result<Self, InvalidHostName> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(ip.into());
        }
        match rustls_pki_types::DnsName::try_from(text) {
            Ok(_) => Ok(Self(Name::Dns(text.to_ascii_lowercase()))),
            Err(_) => Err(InvalidHostName(text.chars().take(80).collect())),
        }
    }
}

impl From<IpAddr> for HostName {
    fn from(ip: IpAddr) -> Self {
        Self(Name::Ip(ip))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Name::Dns(name) => f.write_str(name),
            Name::Ip(ip) => ip.fmt(f),
        }
    }
}

impl TryFrom<String> for HostName {
    type Error = InvalidHostName;

    fn try_from(text: String) -> Result<Self, InvalidHostName> {
        text.parse()
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> Self {
        name.to_string()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_told_apart() {
        let name: HostName = "LB.Example.org".parse().unwrap();
        assert_eq!((name.dns(), name.ip()), (Some("lb.example.org"), None));
        let address: HostName = "::1".parse().unwrap();
        assert_eq!((address.dns(), address.ip()), (None, Some("::1".parse().unwrap())));
        for bad in ["", "no good", "https://a.test", "a.test:7443", "[::1]", "-a"] {
            assert!(bad.parse::<HostName>().unwrap_err().to_string().contains("without scheme and port"), "{bad}");
        }
    }

    #[test]
    fn the_host_of_an_address_has_no_brackets() {
        let host = |address| HostName::of_address(address).map(|name| name.to_string());
        assert_eq!(host("b1.example:7443").as_deref(), Some("b1.example"));
        assert_eq!(host("[::1]:7443").as_deref(), Some("::1"));
        assert_eq!(host("b1.example"), None);
    }
}
