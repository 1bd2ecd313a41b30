//! How packets enter and leave the tunnels, and who may use them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use comity_agent_model::settings::InvalidSetting;
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

/// Default name of the device.
const DEFAULT_DEVICE: &str = "comity0";
/// Most paths carry 1500 bytes, and WireGuard adds at most 80.
const DEFAULT_MTU: u16 = 1420;
/// IPv6 requires this on every link.
const MIN_MTU: u16 = 1280;
/// For a path with jumbo frames of 9000 bytes.
pub(crate) const MAX_MTU: u16 = 8920;
/// A vxlan number has 24 bits.
pub(crate) const MAX_VNI: u32 = 0x00ff_ffff;
/// Default VNI and UDP port of the overlay.
const DEFAULT_OVERLAY: u16 = 51_872;
/// `IFNAMSIZ` of Linux, less its final zero.
const MAX_NAME_BYTES: usize = 15;
/// Default networks for remapping: addresses that providers share (RFC 6598), which few institutions use.
const DEFAULT_REMAP: Ipv4Net = Ipv4Net::new_assert(std::net::Ipv4Addr::new(100, 64, 0, 0), 10);
/// Shortest prefix of a network for remapping.
const MIN_REMAP_PREFIX: u8 = 8;
/// Most networks for remapping.
const MAX_REMAP: usize = 8;
/// Most own networks in the configuration, besides those in the routing table.
const MAX_CONFIGURED_NETWORKS: usize = 64;

/// How packets enter and leave the tunnels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FabricMode {
    /// TCP runs in this process: no privileges, and the tunnel carries the
    /// donor's API only.
    #[default]
    Netstack,
    /// A network device of this node: pods reach each other. Needs NET_ADMIN
    /// and the program `nft`.
    Tun(TunSettings),
}

/// The network device of mode `tun`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TunSettings {
    /// The device's name.
    pub name: String,
    /// The largest packet inside the tunnel: 80 bytes less than the path
    /// carries (60 where WireGuard itself goes over IPv4).
    pub mtu: u16,
    /// Networks of this cluster that are not in the node's routing table, such
    /// as Services: other clusters' pods must not have addresses in them.
    pub own_networks: Vec<Ipv4Net>,
    /// Where this cluster sees other clusters' pods whose addresses overlap with its own or each other's. Nothing in
    /// this cluster may use these networks. Empty: such clusters are refused.
    pub remap: Vec<Ipv4Net>,
    /// The overlay to this cluster's other nodes.
    pub overlay: OverlaySettings,
}

/// The vxlan between the gateway and its cluster's other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OverlaySettings {
    /// False if other nodes reach the gateway by other means.
    pub enabled: bool,
    /// Its number.
    pub vni: u32,
    /// Its UDP port, on every node.
    pub port: u16,
}

impl Default for OverlaySettings {
    fn default() -> Self {
        Self { enabled: true, vni: u32::from(DEFAULT_OVERLAY), port: DEFAULT_OVERLAY }
    }
}

impl Default for TunSettings {
    fn default() -> Self {
        Self {
            name: DEFAULT_DEVICE.to_owned(),
            mtu: DEFAULT_MTU,
            own_networks: Vec::new(),
            remap: vec![DEFAULT_REMAP],
            overlay: OverlaySettings::default(),
        }
    }
}

impl TunSettings {
    /// Refuses the first invalid value.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        // The overlay's device has one letter more.
        let longest = MAX_NAME_BYTES - usize::from(self.overlay.enabled);
        if self.name.is_empty() || self.name.len() > longest || !self.name.chars().all(plain) {
            let reason = format!("want 1 to {longest} letters, digits, '-', '_' or '.', as in {DEFAULT_DEVICE}");
            return Err(InvalidSetting::new("fabric.tun.name", self.name.clone(), reason));
        }
        if !(MIN_MTU..=MAX_MTU).contains(&self.mtu) {
            let reason = format!("want {MIN_MTU} to {MAX_MTU}: 80 less than the path to other clusters carries");
            return Err(InvalidSetting::new("fabric.tun.mtu", self.mtu.to_string(), reason));
        }
        if self.overlay.vni == 0 || self.overlay.vni > MAX_VNI {
            let reason = format!("want 1 to {MAX_VNI}, and none that another vxlan of the nodes has");
            return Err(InvalidSetting::new("fabric.tun.overlay.vni", self.overlay.vni.to_string(), reason));
        }
        if self.overlay.port == 0 {
            let reason = "want a UDP port that is free on every node".to_owned();
            return Err(InvalidSetting::new("fabric.tun.overlay.port", self.overlay.port.to_string(), reason));
        }
        if self.own_networks.len() > MAX_CONFIGURED_NETWORKS {
            let reason = format!("name at most {MAX_CONFIGURED_NETWORKS}; join neighbours into one");
            return Err(InvalidSetting::new("fabric.tun.ownNetworks", self.own_networks.len().to_string(), reason));
        }
        self.check_remap()
    }

    fn check_remap(&self) -> Result<(), InvalidSetting> {
        let refuse = |value: String, reason: String| Err(InvalidSetting::new("fabric.tun.remap", value, reason));
        if self.remap.len() > MAX_REMAP {
            return refuse(self.remap.len().to_string(), format!("name at most {MAX_REMAP} networks"));
        }
        for (index, net) in self.remap.iter().enumerate() {
            let first = net.network();
            let is_special = first.is_loopback() || first.is_link_local() || first.octets()[0] >= 224;
            if net.prefix_len() < MIN_REMAP_PREFIX || net.addr() != first || is_special || first.octets()[0] == 0 {
                let reason = format!("want a network of prefix {MIN_REMAP_PREFIX} to 32, as in {DEFAULT_REMAP}");
                return refuse(net.to_string(), reason);
            }
            if let Some(other) = self.remap[..index].iter().find(|other| other.contains(net) || net.contains(*other)) {
                return refuse(net.to_string(), format!("it overlaps with {other}; name each address once"));
            }
        }
        Ok(())
    }
}

/// Addresses that may communicate through one tunnel, in either direction. Packets that are not between `remote` and
/// `local` are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Addresses of the other cluster.
    pub remote: BTreeSet<Ipv4Net>,
    /// Addresses of this cluster.
    pub local: BTreeSet<Ipv4Net>,
    /// On the origin: pods of this cluster whose TCP to the donor's API server goes through the tunnel, beside the
    /// agent's own.
    pub api_clients: BTreeSet<IpAddr>,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn networks_for_remapping_are_plain_and_disjoint() {
        let check = |nets: &[&str]| {
            let remap = nets.iter().map(|net| net.parse().unwrap()).collect();
            TunSettings { remap, ..TunSettings::default() }.check()
        };
        TunSettings::default().check().unwrap();
        check(&[]).unwrap();
        check(&["100.64.0.0/10", "198.18.0.0/15"]).unwrap();
        for (nets, value) in [
            (&["100.64.0.1/10"][..], "100.64.0.1/10"),
            (&["0.0.0.0/0"], "0.0.0.0/0"),
            (&["127.0.0.0/8"], "127.0.0.0/8"),
            (&["240.0.0.0/8"], "240.0.0.0/8"),
            (&["100.64.0.0/10", "100.65.0.0/16"], "100.65.0.0/16"),
            (&["10.0.0.0/24"; 9], "9"),
        ] {
            let error = check(nets).unwrap_err().to_string();
            assert!(error.contains("fabric.tun.remap") && error.contains(value), "{error}");
        }
    }
}
