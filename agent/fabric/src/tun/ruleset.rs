//! Table `inet comity`, as a script for `nft`. Pure: from the fabric's state to text.
//!
//! - TCP of the `Reach`'s API clients, and of sockets that this process marked, to the donor's API server goes to this
//!   process, which sends it through the tunnel. Others keep their way, also processes of the same user: the donor chose
//!   that address.
//! - Only packets between the two sides of a `Reach` pass the tunnel, on new and old connections alike, so a removed
//!   address loses its connections at once.
//! - The kubelet's port is closed whatever a `Reach` allows.
//! - This node itself answers only echo requests and, on the donor, connections to its API.
//! - Pods of other nodes use the overlay under the same rules; only those nodes may send to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use comity_agent_model::api_port::{API_PORT, DONOR_API_MARK};
use ipnet::Ipv4Net;

use super::allowed::Allowed;
use crate::{Reach, Role};

/// The port of every kubelet. Liqo's virtual-kubelet asks for no credentials on it.
pub(super) const KUBELET_PORT: u16 = 10250;

/// The rules of one peering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerRules {
    /// Number of its sets.
    pub(super) slot: usize,
    pub(super) role: Role,
    pub(super) allowed: Allowed,
    pub(super) remote_api: Option<SocketAddr>,
    pub(super) reach: Reach,
}

/// The content of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) device: String,
    pub(super) peers: BTreeMap<String, PeerRules>,
    pub(super) overlay: Option<OverlayRules>,
}

/// The rules for the overlay to this cluster's other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OverlayRules {
    pub(super) device: String,
    pub(super) port: u16,
    pub(super) nodes: BTreeSet<Ipv4Addr>,
}

/// Removes the table, whether or not it exists.
pub(super) const REMOVE_TABLE: &str = "add table inet comity\ndelete table inet comity\n";

impl Rules {
    /// The smallest free number.
    pub(super) fn free_slot(&self) -> usize {
        (1..).find(|slot| self.peers.values().all(|peer| peer.slot != *slot)).unwrap_or_default()
    }

    /// The whole table; it replaces the existing one in one transaction.
    pub(super) fn script(&self) -> String {
        let mut text = format!("{REMOVE_TABLE}table inet comity {{\n");
        for peer in self.peers.values() {
            peer.sets(&mut text);
        }
        if let Some(overlay) = &self.overlay {
            let nodes = overlay.nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "\tset nodes {{\n\t\ttype ipv4_addr;\n\t\telements = {{ {nodes} }}\n\t}}");
        }
        self.translation(&mut text);
        self.forward(&mut text);
        self.input(&mut text);
        text.push_str("}\n");
        text
    }

    fn chain(&self, text: &mut String, name: &str, hook: &str, rules: impl FnOnce(&mut dyn FnMut(String))) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\tchain {name} {{\n\t\ttype {hook}; policy accept;");
        rules(&mut |rule: String| {
            let _ = writeln!(text, "\t\t{rule}");
        });
        text.push_str("\t}\n");
    }

    /// Before kube-proxy's own rules, which have priorities -100 and 100.
    fn translation(&self, text: &mut String) {
        let device = &self.device;
        let to_tunnel = |rule: &mut dyn FnMut(String), when: &dyn Fn(&str, usize) -> String| {
            for (peering, peer) in &self.peers {
                if let Some((api, target)) = peer.api() {
                    let family = if api.is_ipv4() { "ip" } else { "ip6" };
                    let (address, port, note) = (api.ip(), api.port(), comment(peering));
                    let when = when(family, peer.slot);
                    rule(format!(
                        "{when} {family} daddr {address} tcp dport {port} dnat {family} to {target} comment \"{note}\""
                    ));
                }
            }
        };
        self.chain(text, "prerouting", "nat hook prerouting priority -105", |rule| {
            to_tunnel(rule, &|family, slot| format!("iifname != \"{device}\" {family} saddr @clients{slot}"));
        });
        self.chain(text, "output", "nat hook output priority -105", |rule| {
            to_tunnel(rule, &|_, _| format!("meta mark & 0xffff == {DONOR_API_MARK:#x}"));
        });
        self.chain(text, "postrouting", "nat hook postrouting priority 95", |rule| {
            for peer in self.peers.values() {
                let (local, remote) = (peer.allowed.local, peer.allowed.remote);
                rule(format!("oifname \"{device}\" ip daddr {} snat ip to {}", remote.0, local.0));
                rule(format!("oifname \"{device}\" ip6 daddr {} snat ip6 to {}", remote.1, local.1));
                // Otherwise network plugins give packets that leave the cluster this node's address.
                let slot = peer.slot;
                rule(format!("oifname \"{device}\" ip saddr @local{slot} ip daddr @remote{slot} snat ip to ip saddr"));
            }
        });
    }

    fn forward(&self, text: &mut String) {
        let device = &self.device;
        let (enters, leaves) = (format!("oifname \"{device}\""), format!("iifname \"{device}\""));
        self.chain(text, "forward", "filter hook forward priority 0", |rule| {
            if let Some(OverlayRules { device: overlay, port, .. }) = &self.overlay {
                // No pod may send in place of its node.
                rule(format!("ip daddr @nodes udp dport {port} drop"));
                rule(format!("iifname \"{overlay}\" oifname != \"{device}\" drop"));
                rule(format!("oifname \"{overlay}\" iifname != \"{device}\" drop"));
                rule(format!("oifname \"{overlay}\" tcp flags syn / syn,rst tcp option maxseg size set rt mtu"));
            }
            rule(format!("iifname != \"{device}\" oifname != \"{device}\" accept"));
            rule(format!("{leaves} {enters} drop"));
            rule(format!("{leaves} tcp dport {KUBELET_PORT} drop"));
            rule(format!("{enters} tcp flags syn / syn,rst tcp option maxseg size set rt mtu"));
            rule("ct state related accept".to_owned());
            for (peering, peer) in &self.peers {
                let (slot, note) = (peer.slot, comment(peering));
                rule(format!("{leaves} ip saddr @remote{slot} ip daddr @local{slot} accept comment \"{note}\""));
                rule(format!("{enters} ip saddr @local{slot} ip daddr @remote{slot} accept"));
            }
            rule("drop".to_owned());
        });
    }

    fn input(&self, text: &mut String) {
        let device = &self.device;
        self.chain(text, "input", "filter hook input priority 0", |rule| {
            if let Some(OverlayRules { port, .. }) = &self.overlay {
                rule(format!("ip saddr != @nodes udp dport {port} drop"));
            }
            for peer in self.peers.values() {
                let elsewhere = format!("iifname != \"{device}\" iifname != \"lo\"");
                if let Some((api, target)) = peer.api() {
                    let family = if api.is_ipv4() { "ip" } else { "ip6" };
                    let (address, port, slot) = (target.ip(), target.port(), peer.slot);
                    let clients = format!("{elsewhere} {family} saddr @clients{slot}");
                    // Only packets sent to the API server's own address.
                    rule(format!("{clients} {family} daddr {address} tcp dport {port} ct status dnat accept"));
                }
                rule(format!("{elsewhere} ip daddr {} drop", peer.allowed.local.0));
                rule(format!("{elsewhere} ip6 daddr {} drop", peer.allowed.local.1));
            }
            if let Some(OverlayRules { device: overlay, .. }) = &self.overlay {
                rule(format!("iifname \"{overlay}\" ct state related accept"));
                rule(format!("iifname \"{overlay}\" drop"));
            }
            rule(format!("iifname != \"{device}\" accept"));
            rule("ct state established,related accept".to_owned());
            for peer in self.peers.values() {
                let (local, remote) = (peer.allowed.local, peer.allowed.remote);
                let v4 = format!("ip saddr {} ip daddr {}", remote.0, local.0);
                let v6 = format!("ip6 saddr {} ip6 daddr {}", remote.1, local.1);
                rule(format!("{v4} icmp type echo-request accept"));
                rule(format!("{v6} icmpv6 type echo-request accept"));
                if peer.role == Role::Donor {
                    rule(format!("{v4} tcp dport {API_PORT} accept"));
                    rule(format!("{v6} tcp dport {API_PORT} accept"));
                }
            }
            rule("drop".to_owned());
        });
    }
}

impl PeerRules {
    /// On the origin: the API server's own address, and the address at which this process accepts its connections.
    fn api(&self) -> Option<(SocketAddr, SocketAddr)> {
        let api = self.remote_api.filter(|_| self.role == Role::Origin)?;
        let (v4, v6) = self.allowed.local;
        let target = if api.is_ipv4() { v4.into() } else { v6.into() };
        Some((api, SocketAddr::new(target, API_PORT)))
    }

    fn sets(&self, text: &mut String) {
        for (side, nets) in [("remote", &self.reach.remote), ("local", &self.reach.local)] {
            let _ = writeln!(text, "\tset {side}{} {{\n\t\ttype ipv4_addr; flags interval;", self.slot);
            let nets = disjoint(nets);
            if !nets.is_empty() {
                let _ = writeln!(text, "\t\telements = {{ {} }}", list(&nets));
            }
            text.push_str("\t}\n");
        }
        let Some((api, _)) = self.api() else { return };
        let kind = if api.is_ipv4() { "ipv4_addr" } else { "ipv6_addr" };
        let _ = writeln!(text, "\tset clients{} {{\n\t\ttype {kind};", self.slot);
        let clients = of_family(&self.reach.api_clients, api);
        if !clients.is_empty() {
            let _ = writeln!(text, "\t\telements = {{ {} }}", addresses(&clients));
        }
        text.push_str("\t}\n");
    }

    /// The change of the sets to `reach`, in one transaction; `None` if there is none.
    pub(super) fn change(&self, reach: &Reach) -> Option<String> {
        let mut text = String::new();
        for (side, old, new) in
            [("remote", &self.reach.remote, &reach.remote), ("local", &self.reach.local, &reach.local)]
        {
            let (old, new) = (disjoint(old), disjoint(new));
            for (verb, nets) in [("delete", &old - &new), ("add", &new - &old)] {
                if !nets.is_empty() {
                    let _ = writeln!(text, "{verb} element inet comity {side}{} {{ {} }}", self.slot, list(&nets));
                }
            }
        }
        if let Some((api, _)) = self.api() {
            let (old, new) = (of_family(&self.reach.api_clients, api), of_family(&reach.api_clients, api));
            for (verb, clients) in [("delete", &old - &new), ("add", &new - &old)] {
                if !clients.is_empty() {
                    let list = addresses(&clients);
                    let _ = writeln!(text, "{verb} element inet comity clients{} {{ {list} }}", self.slot);
                }
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

/// The addresses of the API server's family.
fn of_family(addresses: &BTreeSet<IpAddr>, api: SocketAddr) -> BTreeSet<IpAddr> {
    addresses.iter().copied().filter(|address| address.is_ipv4() == api.is_ipv4()).collect()
}

fn addresses(list: &BTreeSet<IpAddr>) -> String {
    list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The same addresses without overlaps, which an interval set refuses.
pub(super) fn disjoint(nets: &BTreeSet<Ipv4Net>) -> BTreeSet<Ipv4Net> {
    let nets: Vec<Ipv4Net> = nets.iter().map(Ipv4Net::trunc).collect();
    let mut kept: BTreeSet<Ipv4Net> = BTreeSet::new();
    // Ordered by first address, then widest first: a network comes after those that contain it.
    let mut sorted = nets;
    sorted.sort_by_key(|net| (net.network(), net.prefix_len()));
    let mut last: Option<Ipv4Net> = None;
    for net in sorted {
        if last.is_none_or(|last| !last.contains(&net)) {
            kept.insert(net);
            last = Some(net);
        }
    }
    kept
}

pub(super) fn list(nets: &BTreeSet<Ipv4Net>) -> String {
    let shown = |net: &Ipv4Net| match net.prefix_len() {
        32 => net.addr().to_string(),
        _ => net.to_string(),
    };
    nets.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// A peering's id, reduced to characters that a comment may have.
fn comment(peering: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let kept: String = peering.chars().filter(|letter| plain(*letter)).take(64).collect();
    format!("peering {kept}")
}

#[cfg(test)]
mod tests;
