//! State of a Liqo's network, as the two agents send it to each other whenever it changes.

use std::net::{IpAddr, Ipv4Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_model::delivery_error::DeliveryError;
use comity_types::{Side, is_dns_label};
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::messages::decode;

/// Most ranges of each kind.
const MAX_RANGES: usize = 8;
/// Most addresses of an endpoint.
const MAX_ADDRESSES: usize = 8;
const MAX_NAME_BYTES: usize = 253;
/// Shortest prefix of a range, as in key bundles.
const MIN_PREFIX: u8 = 8;
/// Bytes of a WireGuard key.
const KEY_BYTES: usize = 32;

/// One cluster's side of the network between two Liqos, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkState {
    /// Networks of its pods, as its Liqo counts them. They may equal the receiver's own: the receiver's Liqo remaps
    /// them.
    pub pod_cidrs: Vec<Ipv4Net>,
    /// Networks from which its Liqo assigns addresses to external hosts.
    pub external_cidrs: Vec<Ipv4Net>,
    /// Base64 of its gateway's WireGuard public key, once its Liqo has made one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    /// Donor: the address of its gateway, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<GatewayEndpoint>,
}

/// Where a gateway receives WireGuard's UDP packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayEndpoint {
    /// IP addresses or DNS names, best first.
    pub addresses: Vec<String>,
    /// UDP port.
    pub port: u16,
}

impl NetworkState {
    /// Step of the envelope in which this side sends its state.
    #[must_use]
    pub const fn step(sender: Side) -> &'static str {
        match sender {
            Side::Donor => "liqo-server",
            Side::Origin => "liqo-client",
        }
    }

    /// The content of the envelope.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers always serialise")
    }

    /// Parses [`encode`](Self::encode)'s form and validates it. `allowed` are the networks in which other clusters'
    /// pods may have addresses.
    ///
    /// # Errors
    /// [`DeliveryError::Permanent`] with code `bad-liqo-message`, naming field and value.
    pub fn read(sender: Side, bytes: &[u8], allowed: &[Ipv4Net]) -> Result<Self, DeliveryError> {
        let step = Self::step(sender);
        let state: Self = decode(step, bytes)?;
        match state.check(sender, allowed) {
            Ok(()) => Ok(state),
            Err(reason) => {
                let text = format!("the other side's {step} message says {reason}");
                Err(DeliveryError::permanent("bad-liqo-message", text))
            }
        }
    }

    fn check(&self, sender: Side, allowed: &[Ipv4Net]) -> Result<(), String> {
        for (field, ranges) in [("podCidrs", &self.pod_cidrs), ("externalCidrs", &self.external_cidrs)] {
            if ranges.is_empty() || ranges.len() > MAX_RANGES {
                return Err(format!("{field} has {} ranges; 1 to {MAX_RANGES} are taken", ranges.len()));
            }
            if let Some(bad) = ranges.iter().find(|range| !can_be(**range)) {
                return Err(format!("{field} {bad}, which no pods can have"));
            }
        }
        let strange = |range: &&Ipv4Net| !allowed.iter().any(|allowed| allowed.contains(*range));
        if let Some(bad) = self.pod_cidrs.iter().find(strange) {
            return Err(format!(
                "podCidrs {bad}, which is in none of liqo.peerNetworks; add it there if that is right"
            ));
        }
        if self.public_key.as_deref().is_some_and(|key| wireguard_key(key).is_none()) {
            return Err("publicKey is not base64 of 32 bytes".to_owned());
        }
        match (&self.endpoint, sender) {
            (None, _) => Ok(()),
            (Some(_), Side::Origin) => {
                Err("endpoint is given, but an origin's gateway accepts no connections".to_owned())
            }
            (Some(endpoint), Side::Donor) => endpoint.check(),
        }
    }
}

impl GatewayEndpoint {
    fn check(&self) -> Result<(), String> {
        if self.port == 0 || self.addresses.is_empty() || self.addresses.len() > MAX_ADDRESSES {
            return Err(format!(
                "endpoint has port {} and {} addresses; a port and 1 to {MAX_ADDRESSES} are taken",
                self.port,
                self.addresses.len()
            ));
        }
        match self.addresses.iter().find(|address| !is_reachable(address)) {
            Some(bad) => {
                let quoted: String = bad.chars().take(64).collect();
                Err(format!("endpoint address {quoted:?}, which is neither an address of a host nor a DNS name"))
            }
            None => Ok(()),
        }
    }
}

/// The bytes of a WireGuard public key.
#[must_use]
pub(super) fn wireguard_key(text: &str) -> Option<[u8; KEY_BYTES]> {
    let key: [u8; KEY_BYTES] = STANDARD.decode(text).ok()?.try_into().ok()?;
    (key != [0; KEY_BYTES]).then_some(key)
}

fn can_be(range: Ipv4Net) -> bool {
    let address = range.network();
    range.prefix_len() >= MIN_PREFIX
        && range.addr() == address
        && !(address.is_loopback() || address.is_multicast() || address.is_link_local() || address.octets()[0] == 0)
        && address < Ipv4Addr::new(240, 0, 0, 0)
}

/// An address that other clusters can send to, or a DNS name.
fn is_reachable(text: &str) -> bool {
    match text.parse::<IpAddr>() {
        Ok(address) => !(address.is_unspecified() || address.is_multicast() || address.is_loopback()),
        Err(_) => {
            let last = text.rsplit('.').next().unwrap_or_default();
            text.len() <= MAX_NAME_BYTES
                && text.split('.').all(is_dns_label)
                && !last.bytes().all(|byte| byte.is_ascii_digit())
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn server() -> NetworkState {
        NetworkState {
            pod_cidrs: vec!["10.200.0.0/16".parse().unwrap()],
            external_cidrs: vec!["10.70.0.0/16".parse().unwrap()],
            public_key: Some(STANDARD.encode([7; 32])),
            endpoint: Some(GatewayEndpoint {
                addresses: vec!["192.0.2.7".into(), "gw.example.org".into()],
                port: 51840,
            }),
        }
    }

    fn read(state: &NetworkState, sender: Side) -> Result<NetworkState, String> {
        let allowed = ["10.0.0.0/8".parse().unwrap()];
        NetworkState::read(sender, &state.encode(), &allowed).map_err(|error| error.to_string())
    }

    #[test]
    fn an_incomplete_state_is_sent_too() {
        assert_eq!(read(&server(), Side::Donor).unwrap(), server());
        let early = NetworkState { public_key: None, endpoint: None, ..server() };
        assert_eq!(read(&early, Side::Donor).unwrap(), early);
        assert_eq!(read(&early, Side::Origin).unwrap(), early);
        assert!(!String::from_utf8(early.encode()).unwrap().contains("endpoint"));
    }

    #[test]
    fn invalid_values_are_refused_and_named() {
        let with = |change: fn(&mut NetworkState)| {
            let mut state = server();
            change(&mut state);
            state
        };
        fn endpoint(state: &mut NetworkState) -> &mut GatewayEndpoint {
            state.endpoint.as_mut().unwrap()
        }
        for (wrong, part) in [
            (with(|s| s.pod_cidrs.clear()), "podCidrs has 0"),
            (with(|s| s.pod_cidrs = vec![s.pod_cidrs[0]; 9]), "podCidrs has 9"),
            (with(|s| s.pod_cidrs[0] = "10.200.0.1/16".parse().unwrap()), "10.200.0.1/16"),
            (with(|s| s.pod_cidrs[0] = "0.0.0.0/0".parse().unwrap()), "0.0.0.0/0"),
            (with(|s| s.pod_cidrs[0] = "192.168.0.0/16".parse().unwrap()), "liqo.peerNetworks"),
            (with(|s| s.external_cidrs[0] = "127.0.0.0/8".parse().unwrap()), "externalCidrs 127.0.0.0/8"),
            (with(|s| s.public_key = Some("c2hvcnQ=".into())), "publicKey"),
            (with(|s| s.public_key = Some(STANDARD.encode([0; 32]))), "publicKey"),
            (with(|s| endpoint(s).port = 0), "port 0"),
            (with(|s| endpoint(s).addresses.clear()), "0 addresses"),
            (with(|s| endpoint(s).addresses[0] = "127.0.0.1".into()), "127.0.0.1"),
            (with(|s| endpoint(s).addresses[0] = "a b".into()), "a b"),
            (with(|s| endpoint(s).addresses[0] = "10.0.0.700".into()), "10.0.0.700"),
        ] {
            let error = read(&wrong, Side::Donor).unwrap_err();
            assert!(error.contains("liqo-server") && error.contains(part), "{error}");
        }
        assert!(read(&server(), Side::Origin).unwrap_err().contains("accepts no connections"));
    }
}
