//! Small UDP datagrams by which a joining cluster finds out whether its fabric can be reached from outside.
//!
//! A datagram is smaller than the request that asks for it, and only the holder of an unspent join token gets any, so
//! that nobody can use brokers to flood or scan others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity_proto::{UDP_PROBE_MAGIC, UDP_PROBE_NONCE_BYTES};
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
    /// The address is the broker's own host or no host's at all.
    #[error("{0} is not an address at which the broker reaches another host")]
    Address(IpAddr),
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

/// Sends one datagram to an endpoint, "host:port", for a caller at this address.
///
/// # Errors
/// [`ProbeError`] if nothing was sent.
pub async fn send_probe(endpoint: &str, nonce: &Nonce, caller: Option<IpAddr>) -> Result<(), ProbeError> {
    let unresolved = |reason: &dyn std::fmt::Display| ProbeError::Unresolved(reason.to_string());
    let resolved = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host(endpoint)).await;
    let mut addresses = resolved.map_err(|_| unresolved(&"no answer"))?.map_err(|error| unresolved(&error))?;
    let target = addresses.next().ok_or_else(|| unresolved(&"it has no address"))?;
    check_target(target, caller)?;
    let any: IpAddr = if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let failed = |error: std::io::Error| ProbeError::Send(error.to_string());
    let socket = UdpSocket::bind((any, 0)).await.map_err(failed)?;
    let datagram = [UDP_PROBE_MAGIC, nonce].concat();
    socket.send_to(&datagram, target).await.map_err(failed)?;
    Ok(())
}

/// Refuses targets that a caller could not have as its own, or that would reach services of the broker's host.
fn check_target(target: SocketAddr, caller: Option<IpAddr>) -> Result<(), ProbeError> {
    if target.port() < MIN_PORT {
        return Err(ProbeError::Port);
    }
    let ip = target.ip().to_canonical();
    let is_local_caller = caller.is_some_and(|caller| caller.to_canonical().is_loopback());
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    if ip.is_unspecified() || ip.is_multicast() || is_broadcast || (ip.is_loopback() && !is_local_caller) {
        return Err(ProbeError::Address(ip));
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const LOOPBACK: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));

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

    #[test]
    fn only_addresses_of_other_hosts_are_probed() {
        let elsewhere: Option<IpAddr> = Some("192.0.2.1".parse().unwrap());
        let check = |target: &str, caller: Option<IpAddr>| check_target(target.parse().unwrap(), caller);
        for target in ["192.0.2.1:51871", "10.0.0.9:1024", "[2001:db8::1]:51871"] {
            assert_eq!(check(target, elsewhere), Ok(()), "{target}");
        }
        assert_eq!(check("127.0.0.1:51871", LOOPBACK), Ok(()));
        assert_eq!(check("192.0.2.1:53", elsewhere), Err(ProbeError::Port));
        for target in [
            "127.0.0.1:51871",
            "[::1]:51871",
            "[::ffff:127.0.0.1]:51871",
            "0.0.0.0:51871",
            "[::]:51871",
            "224.0.0.1:51871",
            "255.255.255.255:51871",
        ] {
            assert!(matches!(check(target, elsewhere), Err(ProbeError::Address(_))), "{target}");
            assert!(matches!(check(target, None), Err(ProbeError::Address(_))), "{target}");
        }
        assert!(check("0.0.0.0:51871", LOOPBACK).is_err());
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
