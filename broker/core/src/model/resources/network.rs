//! Network details that the two sides of a peering exchange for virtual nodes. They travel in the signed key bundle:
//! the broker checks their form and cannot alter them.

use std::net::{Ipv4Addr, Ipv6Addr};

use comity_types::is_dns_label;
use serde::{Deserialize, Serialize};

use crate::model::limits::{MAX_ENDPOINT_BYTES, MAX_LIQO_VERSION_BYTES, MAX_POD_CIDRS};
use crate::model::refusal::Refusal;

/// Shortest allowed prefix: no cluster's pods fill more than a tenth of the private addresses.
const SHORTEST_PREFIX: u8 = 8;

/// One cluster's network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNetwork {
    /// Address ranges of its pods, as text; each parses as a [`PodCidr`].
    pub pod_cidrs: Vec<String>,
    /// "host:port" by which the API server's certificate names it; empty if it is unreachable.
    pub api_server: String,
    /// Cluster id of its Liqo; empty without Liqo.
    pub liqo_cluster_id: String,
    /// Version of its Liqo; empty without Liqo.
    pub liqo_version: String,
    /// Whether its agent's fabric routes pod traffic.
    pub tun: bool,
    /// Whether its pods reach other clusters through Liqo gateways.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub liqo_network: bool,
}

/// A range of IPv4 addresses for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodCidr {
    address: u32,
    prefix: u8,
}

impl PodCidr {
    /// Parses "10.44.0.0/16": no host bits, a prefix of 8 to 32, and only addresses that pods can have. Each range has
    /// exactly one text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let address: Ipv4Addr = address.parse().ok()?;
        let number: u8 = prefix.parse().ok()?;
        let written_once = number.to_string() == prefix;
        let cidr = Self { address: address.into(), prefix: number };
        let in_range = (SHORTEST_PREFIX..=32).contains(&number);
        let [first, second, ..] = address.octets();
        let special = first == 0 || first == 127 || first >= 224 || (first, second) == (169, 254);
        (written_once && in_range && !special && cidr.address & !cidr.mask() == 0).then_some(cidr)
    }

    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }

    /// Whether the ranges overlap; one then contains the other.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let mask = self.mask() & other.mask();
        self.address & mask == other.address & mask
    }
}

impl ClusterNetwork {
    /// Checks form and bounds. The agent that would route the ranges decides whether it may.
    pub fn check(&self) -> Result<(), Refusal> {
        self.check_pod_cidrs()?;
        let invalid = |name: &str, value: &str, why: &str, remedy: &str| {
            Err(Refusal::invalid(&format!("key_bundle.network.{name}"), value, why, remedy))
        };
        if !self.api_server.is_empty() && !is_host_port(&self.api_server) {
            return invalid(
                "api_server",
                &self.api_server,
                "is not host:port",
                "write the address that the API server's certificate names, as in 10.0.0.7:6443",
            );
        }
        if !self.liqo_cluster_id.is_empty() && !is_dns_label(&self.liqo_cluster_id) {
            return invalid(
                "liqo_cluster_id",
                &self.liqo_cluster_id,
                "is not a cluster id of Liqo",
                "send the id that Liqo was installed with: a DNS label",
            );
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || ".+-".contains(c);
        if self.liqo_version.len() > MAX_LIQO_VERSION_BYTES || !self.liqo_version.chars().all(plain) {
            return invalid("liqo_version", &self.liqo_version, "is not a version", "send one such as v1.2.0");
        }
        Ok(())
    }

    fn check_pod_cidrs(&self) -> Result<(), Refusal> {
        if self.pod_cidrs.len() > MAX_POD_CIDRS {
            return Err(Refusal::invalid(
                "key_bundle.network.pod_cidrs",
                self.pod_cidrs.len(),
                "ranges are too many",
                format!("send at most {MAX_POD_CIDRS}"),
            ));
        }
        let mut known: Vec<PodCidr> = Vec::with_capacity(self.pod_cidrs.len());
        for (index, text) in self.pod_cidrs.iter().enumerate() {
            let field = format!("key_bundle.network.pod_cidrs[{index}]");
            let Some(cidr) = PodCidr::parse(text) else {
                let remedy = "write an IPv4 range without host bits and with a prefix of 8 to 32, as in 10.44.0.0/16";
                return Err(Refusal::invalid(&field, text, "is not a range of pod addresses", remedy));
            };
            if known.iter().any(|other| other.overlaps(cidr)) {
                return Err(Refusal::invalid(&field, text, "overlaps another range", "send each address once"));
            }
            known.push(cidr);
        }
        Ok(())
    }
}

/// "host:port" with an IPv4 address, an IPv6 address in brackets or a DNS name, and a port that is not zero.
fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':').filter(|_| text.len() <= MAX_ENDPOINT_BYTES) else { return false };
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return false;
    }
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => host.parse::<Ipv4Addr>().is_ok() || is_dns_name(host),
    }
}

/// A DNS name whose last label is not a number, so that a mistyped address does not pass as a name.
fn is_dns_name(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    text.split('.').all(is_dns_label) && !last.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ClusterNetwork {
        ClusterNetwork {
            pod_cidrs: vec!["10.44.0.0/16".to_owned(), "10.45.0.0/24".to_owned()],
            api_server: "10.0.0.7:6443".to_owned(),
            liqo_cluster_id: "polytech-campus".to_owned(),
            liqo_version: "v1.2.0".to_owned(),
            tun: true,
            liqo_network: false,
        }
    }

    #[test]
    fn good_networks_pass() {
        assert_eq!(good().check(), Ok(()));
        assert_eq!(ClusterNetwork::default().check(), Ok(()));
        for api_server in ["api.campus.example:443", "[fd00::7]:6443", "localhost:1"] {
            assert_eq!(ClusterNetwork { api_server: api_server.to_owned(), ..good() }.check(), Ok(()), "{api_server}");
        }
        for cidr in ["10.0.0.0/8", "192.168.7.9/32", "100.64.0.0/10", "172.16.0.0/12"] {
            assert!(PodCidr::parse(cidr).is_some(), "{cidr}");
        }
    }

    #[test]
    fn bad_ranges_are_refused() {
        for cidr in [
            "",
            "10.44.0.0",
            "10.44.0.0/",
            "10.44.0.0/016",
            "10.44.0.0/+16",
            "10.44.0.0/33",
            "10.44.0.0/7",
            "0.0.0.0/0",
            "0.0.0.0/8",
            "10.44.0.1/16",
            "010.44.0.0/16",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "224.0.0.0/8",
            "fd00::/8",
            "10.44.0.0/16 ",
        ] {
            assert!(PodCidr::parse(cidr).is_none(), "{cidr:?}");
        }
    }

    #[test]
    fn refusals_name_the_field() {
        let with = |change: fn(&mut ClusterNetwork)| {
            let mut network = good();
            change(&mut network);
            network
        };
        let (cidrs, api) = ("key_bundle.network.pod_cidrs", "key_bundle.network.api_server");
        let (id, version) = ("key_bundle.network.liqo_cluster_id", "key_bundle.network.liqo_version");
        for (network, field, value) in [
            (with(|n| n.pod_cidrs = vec!["10.0.0.0/16".to_owned(); 9]), cidrs.to_owned(), "9"),
            (with(|n| n.pod_cidrs.push("pods".to_owned())), format!("{cidrs}[2]"), "pods"),
            (with(|n| n.pod_cidrs.push("10.44.3.0/24".to_owned())), format!("{cidrs}[2]"), "10.44.3.0/24"),
            (with(|n| n.pod_cidrs.push("10.0.0.0/8".to_owned())), format!("{cidrs}[2]"), "10.0.0.0/8"),
            (with(|n| n.api_server = "10.0.0.7".to_owned()), api.to_owned(), "10.0.0.7"),
            (with(|n| n.api_server = "10.0.0.7:0".to_owned()), api.to_owned(), "10.0.0.7:0"),
            (with(|n| n.api_server = "10.0.0.7:+1".to_owned()), api.to_owned(), "10.0.0.7:+1"),
            (with(|n| n.api_server = "10.0.0.7:65536".to_owned()), api.to_owned(), "10.0.0.7:65536"),
            (with(|n| n.api_server = "fd00::7:6443".to_owned()), api.to_owned(), "fd00::7:6443"),
            (with(|n| n.api_server = "a b:6443".to_owned()), api.to_owned(), "a b:6443"),
            (with(|n| n.api_server = "10.0.0.700:6443".to_owned()), api.to_owned(), "10.0.0.700:6443"),
            (with(|n| n.api_server = ":6443".to_owned()), api.to_owned(), ":6443"),
            (with(|n| n.liqo_cluster_id = "Campus_1".to_owned()), id.to_owned(), "Campus_1"),
            (with(|n| n.liqo_version = "1.2 ".to_owned()), version.to_owned(), "1.2 "),
            (with(|n| n.liqo_version = "1".repeat(33)), version.to_owned(), "111111111111111111111111111111111"),
        ] {
            let refusal = network.check().expect_err(value);
            assert_eq!((refusal.field, refusal.value.as_str()), (field, value), "{}", refusal.reason);
            assert!(!refusal.remedy.is_empty());
        }
    }
}
