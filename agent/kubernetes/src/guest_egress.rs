//! What pods of guests may reach: rules for NetworkPolicies, which the cluster's CNI enforces. Pure.
//!
//! They reach one another, the cluster's DNS and public addresses. Private and link-local networks are closed: there are
//! the donor's own services, its kubelets and API server, and the metadata service of a cloud.

use comity_agent_model::local_policy::GuestEgress;
use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Every address of each family.
const EVERYWHERE: [&str; 2] = ["0.0.0.0/0", "::/0"];
/// Networks that no public service has addresses in: RFC 1918, RFC 6598 (shared), RFC 3927 (link-local, with the
/// metadata service 169.254.169.254), RFC 4193 (unique local), link-local, and RFC 6052 and 8215 (translated IPv4
/// addresses, also private ones).
const CLOSED: [&str; 9] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "fc00::/7",
    "fe80::/10",
];
/// Namespaces in which clusters run their DNS.
const DNS_NAMESPACES: [&str; 2] = ["kube-system", "openshift-dns"];
/// Where a node's DNS cache (NodeLocal DNSCache) listens.
const NODE_LOCAL_DNS: &str = "169.254.20.10/32";
/// Ports of DNS servers: a Service's own, and that of OpenShift's pods.
const DNS_PORTS: [i32; 2] = [53, 5353];

/// Egress rules of a namespace of guests: `own` are its own pods, and other places that belong to it.
#[must_use]
pub fn egress_rules(own: Vec<NetworkPolicyPeer>, settings: &GuestEgress) -> Vec<NetworkPolicyEgressRule> {
    let closed = CLOSED.iter().filter_map(|network| network.parse().ok());
    let deny: Vec<IpNet> = closed.chain(settings.deny.iter().copied()).collect();
    let public = EVERYWHERE.iter().filter_map(|network| block(network.parse().ok()?, &deny));
    let allowed = settings.allow.iter().filter_map(|network| block(*network, &settings.deny));
    let outside: Vec<NetworkPolicyPeer> = public.chain(allowed).collect();
    let rule = |to: Vec<NetworkPolicyPeer>| NetworkPolicyEgressRule { to: Some(to), ports: None };
    // A rule without places would allow all.
    [rule(own), dns(), rule(outside)]
        .into_iter()
        .filter(|rule| rule.to.as_ref().is_some_and(|to| !to.is_empty()))
        .collect()
}

/// A place of pods in namespaces with these labels.
#[must_use]
pub fn pods_of_namespaces(label: &str, values: &[&str]) -> NetworkPolicyPeer {
    let wanted = LabelSelectorRequirement {
        key: label.to_owned(),
        operator: "In".to_owned(),
        values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
    };
    let selector = LabelSelector { match_expressions: Some(vec![wanted]), match_labels: None };
    NetworkPolicyPeer { namespace_selector: Some(selector), ..NetworkPolicyPeer::default() }
}

/// A network as a place, without parts of it that are denied; `None` if nothing is left.
#[must_use]
pub fn block(network: IpNet, deny: &[IpNet]) -> Option<NetworkPolicyPeer> {
    if deny.iter().any(|denied| denied.contains(&network)) {
        return None;
    }
    let mut inside: Vec<IpNet> = deny.iter().copied().filter(|denied| network.contains(denied)).collect();
    inside.sort_unstable();
    inside.dedup();
    let except: Vec<String> = inside.iter().map(IpNet::to_string).collect();
    let block = IPBlock { cidr: network.to_string(), except: (!except.is_empty()).then_some(except) };
    Some(NetworkPolicyPeer { ip_block: Some(block), ..NetworkPolicyPeer::default() })
}

fn dns() -> NetworkPolicyEgressRule {
    let port = |protocol: &str, port: i32| NetworkPolicyPort {
        port: Some(IntOrString::Int(port)),
        protocol: Some(protocol.to_owned()),
        end_port: None,
    };
    let ports = DNS_PORTS.iter().flat_map(|number| ["UDP", "TCP"].map(|protocol| port(protocol, *number))).collect();
    let node_local = NODE_LOCAL_DNS.parse().ok().and_then(|network| block(network, &[]));
    let servers = std::iter::once(pods_of_namespaces("kubernetes.io/metadata.name", &DNS_NAMESPACES)).chain(node_local);
    NetworkPolicyEgressRule { to: Some(servers.collect()), ports: Some(ports) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn networks(text: &[&str]) -> Vec<IpNet> {
        text.iter().map(|network| network.parse().unwrap()).collect()
    }

    /// Whether a rule without a port lets packets to this address out.
    fn reaches(rules: &[NetworkPolicyEgressRule], address: &str) -> bool {
        let address: IpAddr = address.parse().unwrap();
        let within = |network: &String| network.parse::<IpNet>().unwrap().contains(&address);
        let lets = |peer: &NetworkPolicyPeer| {
            peer.ip_block
                .as_ref()
                .is_some_and(|block| within(&block.cidr) && !block.except.iter().flatten().any(within))
        };
        rules.iter().filter(|rule| rule.ports.is_none()).any(|rule| rule.to.iter().flatten().any(lets))
    }

    fn own() -> Vec<NetworkPolicyPeer> {
        vec![NetworkPolicyPeer { pod_selector: Some(LabelSelector::default()), ..NetworkPolicyPeer::default() }]
    }

    #[test]
    fn guests_reach_public_addresses_and_neither_private_ones_nor_the_metadata_service() {
        let rules = egress_rules(own(), &GuestEgress::default());
        for public in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111"] {
            assert!(reaches(&rules, public), "{public}");
        }
        for closed in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
            "169.254.20.10",
            "fd00:ec2::254",
            "fe80::1",
            "64:ff9b::a00:1",
        ] {
            assert!(!reaches(&rules, closed), "{closed}");
        }
        let dns = &rules[1];
        assert_eq!(dns.ports.as_ref().unwrap().len(), 4);
        assert_eq!(rules[0].to.as_ref().unwrap(), &own());
    }

    #[test]
    fn the_donor_opens_and_closes_networks_and_closed_wins() {
        let settings = GuestEgress {
            allow: networks(&["10.20.0.0/16", "192.0.2.0/24"]),
            deny: networks(&["10.20.7.0/24", "192.0.0.0/16", "10.20.7.0/24", "2001:db8::/32"]),
        };
        let rules = egress_rules(own(), &settings);
        assert!(reaches(&rules, "10.20.1.1") && !reaches(&rules, "10.20.7.1") && !reaches(&rules, "10.21.0.1"));
        assert!(!reaches(&rules, "192.0.2.1") && !reaches(&rules, "192.0.7.1") && !reaches(&rules, "2001:db8::1"));
    }

    /// The API server refuses an exception that is as wide as its network.
    #[test]
    fn a_network_that_is_denied_as_a_whole_has_no_rule() {
        let settings = GuestEgress { allow: Vec::new(), deny: networks(&["0.0.0.0/0", "::/0"]) };
        let rules = egress_rules(own(), &settings);
        assert_eq!(rules.len(), 2, "its own pods and DNS: {rules:?}");
        assert!(!reaches(&rules, "1.1.1.1"));
    }
}
