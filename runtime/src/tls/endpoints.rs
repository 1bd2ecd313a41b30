//! Broker addresses.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Broker addresses of a client, at most.
pub const MAX_ENDPOINTS: usize = 16;
const HOST_MAX_BYTES: usize = 253;

/// Why a list of broker addresses is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EndpointError {
    /// An address is not `host:port`.
    #[error(
        "broker address {value:?} is refused: {reason}; want host:port, e.g. broker-1.example.org:7443 or [::1]:7443"
    )]
    Form {
        /// The invalid text, shortened.
        value: String,
        /// The error.
        reason: &'static str,
    },
    /// The list is empty or too long.
    #[error("{found} broker addresses given, want 1 to {MAX_ENDPOINTS}")]
    Count {
        /// Number of addresses.
        found: usize,
    },
}

/// Broker addresses (`host:port`) in the order of attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerEndpoints(Vec<String>);

impl BrokerEndpoints {
    /// Validates addresses.
    ///
    /// # Errors
    /// [`EndpointError`] for the first address that is not `host:port`, or for an empty or too long list.
    pub fn new<S: AsRef<str>>(addresses: impl IntoIterator<Item = S>) -> Result<Self, EndpointError> {
        let mut checked = Vec::new();
        for address in addresses {
            if checked.len() > MAX_ENDPOINTS {
                break;
            }
            checked.push(check(address.as_ref().trim())?.to_owned());
        }
        if checked.is_empty() || checked.len() > MAX_ENDPOINTS {
            return Err(EndpointError::Count { found: checked.len() });
        }
        Ok(Self(checked))
    }

    /// The same addresses, starting at `index` modulo their number. Spreads clients over brokers.
    #[must_use]
    pub fn starting_at(mut self, index: usize) -> Self {
        let len = self.0.len();
        self.0.rotate_left(index % len);
        self
    }

    /// These addresses, then `more`, up to [`MAX_ENDPOINTS`].
    pub(super) fn with(&self, more: &[String]) -> Self {
        Self(self.0.iter().chain(more).take(MAX_ENDPOINTS).cloned().collect())
    }

    /// The addresses.
    pub fn addresses(&self) -> &[String] {
        &self.0
    }
}

impl FromStr for BrokerEndpoints {
    type Err = EndpointError;

    /// Comma-separated addresses.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        Self::new(text.split(',').filter(|part| !part.trim().is_empty()))
    }
}

impl fmt::Display for BrokerEndpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// The host of a valid address, without brackets.
pub(super) fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn check(address: &str) -> Result<&str, EndpointError> {
    let fail = |reason| EndpointError::Form { value: address.chars().take(80).collect(), reason };
    let (host, port) = address.rsplit_once(':').ok_or_else(|| fail("it has no port"))?;
    if !port.bytes().all(|b| b.is_ascii_digit()) || !port.parse::<u16>().is_ok_and(|p| p > 0) {
        return Err(fail("the port is not 1 to 65535"));
    }
    let bare = match host.strip_prefix('[') {
        Some(rest) => {
            let inner = rest.strip_suffix(']').ok_or_else(|| fail("the bracket is not closed"))?;
            inner.parse::<std::net::Ipv6Addr>().map_err(|_| fail("the brackets have no IPv6 address"))?;
            inner
        }
        None => host,
    };
    let is_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if bare.is_empty() || bare.len() > HOST_MAX_BYTES {
        return Err(fail("the host is empty or too long"));
    }
    if bare == host && !bare.bytes().all(is_host) {
        return Err(fail("the host has characters that are not allowed in host names"));
    }
    Ok(address)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn takes_hosts_and_addresses() {
        let list: BrokerEndpoints = "a.test:7443, 127.0.0.1:1 ,[::1]:65535".parse().unwrap();
        assert_eq!(list.to_string(), "a.test:7443,127.0.0.1:1,[::1]:65535");
        assert_eq!(list.addresses().iter().map(|a| host(a)).collect::<Vec<_>>(), ["a.test", "127.0.0.1", "::1"]);
        assert_eq!(list.starting_at(4).addresses()[0], "127.0.0.1:1");
    }

    #[test]
    fn refuses_the_rest() {
        for bad in
            ["a", "a:", "a:0", "a:65536", "a:+1", ":1", "http://a:1", "a b:1", "::1:1", "[::1:1", "[a]:1", "a/b:1"]
        {
            let error = BrokerEndpoints::new([bad]).unwrap_err();
            assert!(matches!(error, EndpointError::Form { .. }), "{bad}: {error}");
        }
        assert!(matches!("".parse::<BrokerEndpoints>(), Err(EndpointError::Count { found: 0 })));
        assert!(BrokerEndpoints::new(vec!["a:1"; 16]).is_ok());
        assert!(matches!(BrokerEndpoints::new(vec!["a:1"; 99]), Err(EndpointError::Count { .. })));
    }
}
