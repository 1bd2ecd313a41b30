//! Table `inet comity_node` of a node that is not the gateway, as a script for `nft`. Pure.
//!
//! - Only the gateway sends to this end of the overlay, and no pod in its place.
//! - Only packets to and from the published networks pass.
//! - Only the API servers' clients among the pods reach them over the gateway.
//! - The node itself accepts only answers to its own programs, from pods.
//! - Pods keep their addresses.

use std::fmt::Write as _;

use super::super::ruleset::{KUBELET_PORT, disjoint, list};
use super::{ApiRoute, Published};

/// Removes the table, whether or not it exists.
pub(super) const REMOVE_NODE_TABLE: &str = "add table inet comity_node\ndelete table inet comity_node\n";

/// The whole table; it replaces the existing one in one transaction.
pub(super) fn script(device: &str, published: &Published) -> String {
    let Published { gateway, port, pod_networks, api_routes, .. } = published;
    let (enters, leaves) = (format!("iifname \"{device}\""), format!("oifname \"{device}\""));
    let mut text =
        format!("{REMOVE_NODE_TABLE}table inet comity_node {{\n\tset beyond {{\n\t\ttype ipv4_addr; flags interval;\n");
    let nets = disjoint(pod_networks);
    // Writing to a string cannot fail.
    if !nets.is_empty() {
        let _ = writeln!(text, "\t\telements = {{ {} }}", list(&nets));
    }
    text.push_str("\t}\n\tset apis {\n\t\ttype ipv4_addr . ipv4_addr . inet_service;\n");
    if !api_routes.is_empty() {
        let shown = |ApiRoute { client, server }: &ApiRoute| format!("{client} . {} . {}", server.ip(), server.port());
        let apis: Vec<String> = api_routes.iter().map(shown).collect();
        let _ = writeln!(text, "\t\telements = {{ {} }}", apis.join(", "));
    }
    text.push_str("\t}\n");
    let mut chain = |name: &str, hook: &str, rules: &[String]| {
        let _ = writeln!(text, "\tchain {name} {{\n\t\ttype {hook}; policy accept;");
        for rule in rules {
            let _ = writeln!(text, "\t\t{rule}");
        }
        text.push_str("\t}\n");
    };
    chain(
        "postrouting",
        "nat hook postrouting priority 95",
        &[
            format!("{leaves} ip daddr @beyond snat ip to ip saddr"),
            format!("{leaves} ip saddr . ip daddr . tcp dport @apis snat ip to ip saddr"),
        ],
    );
    chain(
        "forward",
        "filter hook forward priority 0",
        &[
            format!("ip daddr {gateway} udp dport {port} drop"),
            format!("iifname != \"{device}\" oifname != \"{device}\" accept"),
            format!("{enters} {leaves} drop"),
            format!("{enters} tcp dport {KUBELET_PORT} drop"),
            format!("{leaves} tcp flags syn / syn,rst tcp option maxseg size set rt mtu"),
            format!("{enters} ip saddr @beyond accept"),
            format!("{leaves} ip daddr @beyond accept"),
            format!("{enters} ip daddr . ip saddr . tcp sport @apis ct state established accept"),
            format!("{leaves} ip saddr . ip daddr . tcp dport @apis accept"),
            "ct state related accept".to_owned(),
            "drop".to_owned(),
        ],
    );
    chain(
        "input",
        "filter hook input priority 0",
        &[
            format!("ip saddr != {gateway} udp dport {port} drop"),
            format!("iifname != \"{device}\" accept"),
            "ip saddr @beyond ct state established accept".to_owned(),
            "ct state related accept".to_owned(),
            "drop".to_owned(),
        ],
    );
    text.push_str("}\n");
    text
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::published::tests::published;
    use super::*;

    /// `COMITY_BLESS=1` rewrites the expected file; review it before you commit.
    #[test]
    fn the_table_of_a_node() {
        let script = script("comity0v", &published());
        let path = format!("{}/src/tun/golden/node.nft", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("COMITY_BLESS").is_some() {
            std::fs::write(&path, &script).unwrap();
        }
        assert_eq!(script, std::fs::read_to_string(&path).unwrap(), "{path}");
    }
}
