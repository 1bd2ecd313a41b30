#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use super::*;
use crate::{PresharedKey, WireguardKey, fabric_addresses};

fn config(peering: &str, cluster: &str, routes: &[&str], api: Option<&str>) -> PeerConfig {
    let addresses = fabric_addresses(peering, 1);
    PeerConfig {
        peering: peering.to_owned(),
        epoch: 1,
        local_secret: WireguardKey::generate().unwrap(),
        remote_public: WireguardKey::generate().unwrap().public(),
        preshared: PresharedKey::generate().unwrap(),
        endpoints: vec!["192.0.2.7:51871".parse().unwrap()],
        local_address: addresses.origin,
        remote_address: addresses.donor,
        keepalive: Duration::from_secs(25),
        role: Role::Origin,
        remote_cluster: cluster.to_owned(),
        routes: routes.iter().map(|net| PodNetwork::unchanged(net.parse().unwrap())).collect(),
        remote_api: api.map(|api| api.parse().unwrap()),
    }
}

fn route(net: &str) -> OwnNetwork {
    OwnNetwork { net: net.parse().unwrap(), what: "route over cni0".to_owned(), is_address: false }
}

fn address(net: &str) -> OwnNetwork {
    OwnNetwork { is_address: true, ..route(net) }
}

#[test]
fn a_peer_sends_from_its_own_addresses_only() {
    let config = config("p", "donor", &["10.2.0.0/16"], None);
    let allowed = Allowed::of(&config);
    let admits = |address: &str| allowed.admits(address.parse().unwrap());
    assert!(admits("10.2.255.1") && allowed.admits(allowed.remote.0.into()));
    assert!(allowed.admits(config.remote_address.into()));
    assert!(!admits("10.3.0.1") && !admits("fd00::1") && !allowed.admits(allowed.local.0.into()));
    assert!(!allowed.admits(config.local_address.into()));
}

#[test]
fn a_remapped_network_is_routed_at_its_range_and_admitted_at_its_own_addresses() {
    let here = "100.70.0.0/16".parse().unwrap();
    let network = PodNetwork { there: "10.2.0.0/16".parse().unwrap(), here };
    let remapped = PeerConfig { routes: vec![network], ..config("p", "donor", &[], None) };
    let allowed = Allowed::of(&remapped);
    let admits = |address: &str| allowed.admits(address.parse().unwrap());
    assert!(admits("10.2.255.1") && !admits("100.70.255.1"));
    let mut table = RouteTable::default();
    table.add(&allowed, &"p");
    let found = |address: &str| table.lookup(address.parse().unwrap(), |_| true).is_some();
    assert!(found("100.70.3.4") && !found("10.2.3.4"));
    // This node may use the addresses that the network has in the other cluster, and not those it has here.
    check(&remapped, &[route("10.2.0.0/16")], [].into_iter()).unwrap();
    let error = check(&remapped, &[route("100.70.9.0/24")], [].into_iter()).unwrap_err().to_string();
    assert!(error.contains("pod network 100.70.0.0/16") && error.contains("100.70.9.0/24"), "{error}");
}

#[test]
fn the_longest_prefix_wins_and_of_equals_the_one_that_is_up() {
    let wide = config("wide", "a", &["10.2.0.0/16"], None);
    let narrow = config("narrow", "b", &["10.2.3.0/24"], None);
    let twin = config("twin", "b", &["10.2.3.0/24"], None);
    let mut table = RouteTable::default();
    for config in [&wide, &narrow, &twin] {
        table.add(&Allowed::of(config), &config.peering.clone());
    }
    let to = |address: &str, up: &str| table.lookup(address.parse().unwrap(), |peer| peer == up).cloned();
    assert_eq!(to("10.2.9.9", "-").as_deref(), Some("wide"));
    assert_eq!(to("10.2.3.4", "-").as_deref(), Some("narrow"));
    assert_eq!(to("10.2.3.4", "twin").as_deref(), Some("twin"));
    assert_eq!(to("10.9.0.1", "-"), None);
    assert_eq!(to(&Allowed::of(&twin).remote.0.to_string(), "-").as_deref(), Some("twin"));
    assert_eq!(to(&wide.remote_address.to_string(), "-").as_deref(), Some("wide"));
}

#[test]
fn an_overlap_with_this_node_is_refused_and_both_networks_are_named() {
    let check = |config: &PeerConfig, own: &[OwnNetwork]| check(config, own, [].into_iter());
    let pods = config("p", "donor", &["10.2.0.0/16"], None);
    for net in ["10.2.3.0/24", "10.0.0.0/8", "10.2.0.0/16"] {
        let error = check(&pods, &[route("172.16.0.0/12"), route(net)]).unwrap_err().to_string();
        assert!(error.contains("pod network 10.2.0.0/16") && error.contains(net) && error.contains("cni0"), "{error}");
    }
    check(&pods, &[route("10.1.0.0/16"), route("fd00::/8")]).unwrap();

    let api = config("p", "donor", &[], Some("192.168.1.10:6443"));
    // Two clusters of one institution may have gateways in one network.
    check(&api, &[route("192.168.1.0/24"), address("192.168.1.11/32")]).unwrap();
    let error = check(&api, &[address("192.168.1.10/32")]).unwrap_err().to_string();
    assert!(error.contains("API server 192.168.1.10:6443"), "{error}");
    for api in ["127.0.0.1:6443", "169.254.1.1:6443", "[::]:6443", "192.0.2.1:0"] {
        check(&config("p", "donor", &[], Some(api)), &[]).unwrap_err();
    }
}

#[test]
fn the_path_to_the_other_side_cannot_use_its_own_tunnel() {
    let config = config("p", "donor", &["192.0.2.0/24"], None);
    let error = check(&config, &[], [].into_iter()).unwrap_err().to_string();
    assert!(error.contains("192.0.2.0/24") && error.contains("192.0.2.7:51871"), "{error}");
}

#[test]
fn only_one_cluster_has_a_network() {
    let first = config("p", "donor", &["10.2.0.0/16"], Some("203.0.113.1:6443"));
    let check = |config: &PeerConfig| check(config, &[], [&first].into_iter());
    // The same cluster, in the other direction.
    check(&config("q", "donor", &["10.2.0.0/16"], None)).unwrap();
    check(&config("q", "other", &["10.3.0.0/16"], Some("203.0.113.2:6443"))).unwrap();
    for (cluster, net) in [("other", "10.2.0.0/16"), ("other", "10.2.9.0/24"), ("donor", "10.2.9.0/24")] {
        let error = check(&config("q", cluster, &[net], None)).unwrap_err().to_string();
        assert!(error.contains(net) && error.contains("10.2.0.0/16") && error.contains("peering p"), "{error}");
    }
    let error = check(&config("q", "other", &[], Some("203.0.113.1:6443"))).unwrap_err().to_string();
    assert!(error.contains("API server 203.0.113.1:6443"), "{error}");
    // The peering itself, in its next epoch.
    check(&PeerConfig { epoch: 2, ..first.clone() }).unwrap();
}
