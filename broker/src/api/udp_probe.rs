//! Small UDP datagrams by which a joining cluster finds out whether its fabric can be reached from outside.
//!
//! A datagram is smaller than the request that asks for it, and goes only to the address from which the holder of an
//! unspent join token calls, so that nobody can use brokers to flood or scan others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity_proto::{UDP_PROBE_MAGIC, UDP_PROBE_NONCE_BYTES, UDP_PROBE_OTHER_ADDRESS};
use tokio::net::UdpSocket;

/// Lowest port that is probed: those below belong to other services.
const MIN_PORT: u16 = 1_024;
/// Probed calls with one token within [`PROBE_WINDOW`]: enough for somebody who corrects a firewall.
const MAX_CALLS: u32 = 10;
const PROBE_WINDOW: Duration = Duration::from_secs(60);
/// Tokens that are remembered; beyond that no other is probed until the oldest are forgotten.
const MAX_TOKENS: usize = 4_096;
/// Time limit of resolving a host name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The random bytes of a check, which its datagrams repeat.
pub type Nonce = [u8; UDP_PROBE_NONCE_BYTES];

/// Why a datagram was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The address is no "host:port", or the name is unknown.
    #[error("the broker cannot resolve it: {0}")]
    Unresolved(String),
    /// The port belongs to a system service.
    #[error("ports below {MIN_PORT} are not probed")]
    Port,
    /// The caller calls from another address.
    #[error("{target} is not {caller}; {}", UDP_PROBE_OTHER_ADDRESS)]
    OtherAddress {
        /// The first address of the endpoint.
        target: IpAddr,
        /// The caller's.
        caller: IpAddr,
    },
    /// The token was checked often just now.
    #[error("this token was checked {MAX_CALLS} times within {} s; wait a minute", PROBE_WINDOW.as_secs())]
    TooOften,
    /// The system refused.
    #[error("the broker cannot send to it: {0}")]
    Send(String),
}

/// Limits probed calls with each token. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct UdpProbeLimit {
    windows: Arc<Mutex<BTreeMap<String, CallWindow>>>,
}

/// Calls with one token since a monotonic time.
#[derive(Debug, Clone, Copy)]
struct CallWindow {
    start: Duration,
    calls: u32,
}

impl UdpProbeLimit {
    /// Permits a call at the monotonic time `now`.
    ///
    /// # Errors
    /// [`ProbeError::TooOften`].
    pub fn allow(&self, token_sha256: &str, now: Duration) -> Result<(), ProbeError> {
        // Each change is one entry, so a panic elsewhere leaves nothing half done.
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        windows.retain(|_, window| now.saturating_sub(window.start) < PROBE_WINDOW);
        if !windows.contains_key(token_sha256) && windows.len() >= MAX_TOKENS {
            return Err(ProbeError::TooOften);
        }
        let window = windows.entry(token_sha256.to_owned()).or_insert(CallWindow { start: now, calls: 0 });
        if window.calls >= MAX_CALLS {
            return Err(ProbeError::TooOften);
        }
        window.calls += 1;
        Ok(())
    }
}

/// Sends one datagram to an endpoint, "host:port", if the caller calls from its address.
///
/// # Errors
/// [`ProbeError`] if nothing was sent.
pub async fn send_probe(endpoint: &str, nonce: &Nonce, caller: IpAddr) -> Result<(), ProbeError> {
    let unresolved = |reason: &dyn std::fmt::Display| ProbeError::Unresolved(reason.to_string());
    let resolved = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host(endpoint)).await;
    let addresses = resolved.map_err(|_| unresolved(&"no answer"))?.map_err(|error| unresolved(&error))?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    let first = addresses.first().ok_or_else(|| unresolved(&"it has no address"))?;
    if first.port() < MIN_PORT {
        return Err(ProbeError::Port);
    }
    let caller = caller.to_canonical();
    let target = choose_target(&addresses, caller);
    let target = target.ok_or_else(|| ProbeError::OtherAddress { target: first.ip().to_canonical(), caller })?;
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let failed = |error: std::io::Error| ProbeError::Send(error.to_string());
    let socket = UdpSocket::bind((any, 0)).await.map_err(failed)?;
    let datagram = [UDP_PROBE_MAGIC, nonce].concat();
    socket.send_to(&datagram, target).await.map_err(failed)?;
    Ok(())
}

/// The address of the caller among those of an endpoint. A caller on the broker's own host may name any loopback
/// address.
fn choose_target(addresses: &[SocketAddr], caller: IpAddr) -> Option<SocketAddr> {
    let is_callers = |target: &&SocketAddr| {
        let ip = target.ip().to_canonical();
        ip == caller || (ip.is_loopback() && caller.is_loopback())
    };
    addresses.iter().find(is_callers).copied()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn a_datagram_with_the_nonce_arrives() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint = socket.local_addr().unwrap().to_string();
        send_probe(&endpoint, &[7; 16], LOOPBACK).await.unwrap();
        let mut datagram = [0; 64];
        let (length, _) =
            tokio::time::timeout(Duration::from_secs(5), socket.recv_from(&mut datagram)).await.unwrap().unwrap();
        assert_eq!(datagram[..length], [UDP_PROBE_MAGIC, &[7; 16]].concat());
    }

    #[tokio::test]
    async fn names_without_an_address_are_reported() {
        let error = send_probe("nowhere", &[7; 16], LOOPBACK).await.unwrap_err();
        assert!(matches!(error, ProbeError::Unresolved(_)), "{error}");
    }

    #[tokio::test]
    async fn nothing_is_sent_to_other_addresses_or_low_ports() {
        let caller: IpAddr = "192.0.2.1".parse().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let own = socket.local_addr().unwrap().to_string();
        let refused = send_probe(&own, &[7; 16], caller).await.unwrap_err();
        assert_eq!(refused, ProbeError::OtherAddress { target: LOOPBACK, caller });
        assert!(socket.try_recv(&mut [0; 64]).is_err());
        assert_eq!(send_probe("192.0.2.1:53", &[7; 16], caller).await, Err(ProbeError::Port));
    }

    #[test]
    fn only_the_callers_own_address_is_probed() {
        let choose = |targets: &[&str], caller: &str| {
            let targets: Vec<SocketAddr> = targets.iter().map(|target| target.parse().unwrap()).collect();
            choose_target(&targets, caller.parse().unwrap()).map(|target| target.to_string())
        };
        for own in ["192.0.2.1:51871", "[::ffff:192.0.2.1]:51871"] {
            assert_eq!(choose(&[own], "192.0.2.1"), Some(own.to_owned()));
        }
        let both = ["[2001:db8::1]:51871", "192.0.2.1:51871"];
        assert_eq!(choose(&both, "192.0.2.1"), Some(both[1].to_owned()));
        assert_eq!(choose(&both, "2001:db8::1"), Some(both[0].to_owned()));
        assert_eq!(choose(&["127.0.0.2:51871"], "127.0.0.1"), Some("127.0.0.2:51871".to_owned()));
        for other in [
            "127.0.0.1:51871",
            "[::1]:51871",
            "[::ffff:127.0.0.1]:51871",
            "10.0.0.9:51871",
            "192.0.2.2:51871",
            "0.0.0.0:51871",
            "224.0.0.1:51871",
            "255.255.255.255:51871",
        ] {
            assert_eq!(choose(&[other], "192.0.2.1"), None, "{other}");
        }
        assert_eq!(choose(&["10.0.0.9:51871"], "127.0.0.1"), None);
    }

    #[test]
    fn a_token_is_probed_a_few_times_a_minute() {
        let limit = UdpProbeLimit::default();
        let at = Duration::from_millis;
        for call in 0..10 {
            assert_eq!(limit.allow("a", at(call)), Ok(()));
        }
        assert_eq!(limit.allow("a", at(59_999)), Err(ProbeError::TooOften));
        assert_eq!(limit.allow("b", at(59_999)), Ok(()));
        assert_eq!(limit.allow("a", at(60_000)), Ok(()));
    }
}
