//! A second node of the origin, with a pod: pod-2 10.81.1.2 ─ node 198.51.100.11 ─ gw-o 198.51.100.10 ═ tunnel ═ gw-d ─
//! pod-d.

use comity_agent_fabric::{ClusterNode, NodeOverlay, Published};

use super::*;

const POD_2: Ipv4Addr = Ipv4Addr::new(10, 81, 1, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 10);
const NODE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 11);

/// Adds the node and its pod, connected as by a network plugin without an overlay. The nodes' network has a small MTU.
fn add_node(net: &Net) {
    for name in ["n2", "p2"] {
        ip(&format!("netns add {}", net.name(name)));
        ip(&format!("-n {} link set lo up", net.name(name)));
    }
    net.join("go", "198.51.100.10/24", "n2", "198.51.100.11/24");
    net.join("n2", "10.81.1.1/24", "p2", "10.81.1.2/24");
    ip(&format!("-n {} link set to-n2 mtu 1400", net.name("go")));
    ip(&format!("-n {} link set to-go mtu 1400", net.name("n2")));
    ip(&format!("-n {} route add 10.81.1.0/24 via {NODE}", net.name("go")));
    ip(&format!("-n {} route add default via {GATEWAY}", net.name("n2")));
    ip(&format!("-n {} route add default via 10.81.1.1", net.name("p2")));
    for node in ["go", "n2"] {
        net.within(node, || {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            for link in std::fs::read_dir("/proc/sys/net/ipv4/conf").unwrap() {
                std::fs::write(link.unwrap().path().join("rp_filter"), "1").unwrap();
            }
        });
    }
}

fn nodes(pods: &[&str]) -> [ClusterNode; 2] {
    let pod_networks = pods.iter().map(|net| net.parse().unwrap()).collect();
    let gateway = ClusterNode { address: GATEWAY, pod_networks: Default::default() };
    [gateway, ClusterNode { address: NODE, pod_networks }]
}

/// Makes the node follow the document; returns what it refuses.
fn follow(net: &Net, overlay: &mut Option<NodeOverlay>, published: &Published) -> Vec<String> {
    net.within("n2", || {
        let overlay = overlay.get_or_insert_with(|| NodeOverlay::open("comity0v", None).unwrap());
        let refused = overlay.apply(published).unwrap();
        assert!(overlay.is_whole().unwrap());
        refused.iter().map(ToString::to_string).collect()
    })
}

fn at_node(net: &Net) -> String {
    let of = |what: &str| ip(&format!("-n {} {what}", net.name("n2")));
    format!("{}{}{}{}", of("link show"), of("route show table all"), of("rule show"), net.nft("n2"))
}

#[test]
fn pods_of_another_node_come_and_go_over_the_gateway() {
    if !comity_testkit::requirements::met("fabric_tun, several nodes", &missing()) {
        return;
    }
    let net = Net::named("cfn");
    add_node(&net);
    let (origin_runtime, donor_runtime) = (runtime(&net, "go"), runtime(&net, "gd"));
    let origin = bind(&net, "go", &origin_runtime).unwrap();
    let donor = bind(&net, "gd", &donor_runtime).unwrap();
    let (origin_config, donor_config) = sides();
    let donor_config = PeerConfig { routes: vec![unchanged("10.81.0.0/16")], ..donor_config };
    let origin_peer = net.within("go", || origin_runtime.block_on(async { origin.add_peer(origin_config) })).unwrap();
    let donor_peer = net.within("gd", || donor_runtime.block_on(async { donor.add_peer(donor_config) })).unwrap();
    origin_runtime.block_on(origin_peer.wait_handshake(SOON)).unwrap();
    for (name, address) in [("pd", POD_D), ("p2", POD_2)] {
        net.echo(name, address, PORT);
        net.echo(name, address, KUBELET);
    }
    net.echo("n2", Ipv4Addr::UNSPECIFIED, PORT);
    net.echo("go", Ipv4Addr::UNSPECIFIED, PORT);
    net.echo("gd", Ipv4Addr::LOCALHOST, 7000);
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, 7000)).into();
    let exposure =
        net.within("gd", || donor_runtime.block_on(async { expose(&donor_peer, API_PORT, target) })).unwrap();
    let led = net.within("go", || origin_runtime.block_on(async { forward_api(&origin_peer) })).unwrap();
    let with_client = Reach { api_clients: [POD_2.into()].into(), ..reach("10.82.0.2/32", "10.81.0.0/16") };
    net.within("go", || origin.set_reachable("tun-test", with_client)).unwrap();
    net.within("gd", || donor.set_reachable("tun-test", reach("10.81.0.0/16", "10.82.0.2/32"))).unwrap();

    // Without other nodes there is nothing to publish; a list of nodes without this one is refused.
    assert_eq!(origin.published(), None);
    let elsewhere = ClusterNode { address: Ipv4Addr::new(198, 51, 100, 99), pod_networks: Default::default() };
    let error = net.within("go", || origin.set_nodes(&[elsewhere])).unwrap_err().to_string();
    assert!(error.contains("hostNetwork"), "{error}");

    net.within("go", || origin.set_nodes(&nodes(&["10.81.1.0/24"]))).unwrap();
    let published = origin.published().unwrap();
    assert_eq!((published.gateway, published.mtu), (GATEWAY, 1350));
    let mut overlay = None;
    assert_eq!(follow(&net, &mut overlay, &published), [""; 0]);
    let api: SocketAddr = REMOTE_API.parse().unwrap();
    everything_passes(&net, api);
    assert!(net.is_dropped("p2", (POD_D, KUBELET)) && net.is_dropped("pd", (POD_2, KUBELET)));
    for closer in ["go", "gd", "n2"] {
        assert!(net.fragments(closer).chars().all(|digit| digit == '0'), "{closer} {}", net.fragments(closer));
    }
    nobody_speaks_in_the_gateways_place(&net);

    // Without a node's pod networks, its pods answer through the network plugin.
    net.within("go", || origin.set_nodes(&nodes(&[]))).unwrap();
    assert!(net.is_dropped("p2", (POD_D, PORT)), "filtering is strict");
    net.within("n2", || {
        for link in ["all", "to-go"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{link}/rp_filter"), "2").unwrap();
        }
    });
    everything_passes(&net, api);

    // A network that overlaps with the node's own is refused; the rest is applied.
    let mut overlapping = published.clone();
    overlapping.pod_networks.insert("10.81.0.0/16".parse().unwrap());
    let refused = follow(&net, &mut overlay, &overlapping);
    assert!(
        refused.len() == 1 && refused[0].contains("10.81.0.0/16") && refused[0].contains("10.81.1.0/24"),
        "{refused:?}"
    );
    everything_passes(&net, api);

    // A killed run leaves a working overlay; the next run replaces it.
    std::mem::forget(overlay.take());
    ip(&format!("-n {} route add 10.99.0.0/24 dev comity0v", net.name("n2")));
    everything_passes(&net, api);
    follow(&net, &mut overlay, &published);
    assert!(!at_node(&net).contains("10.99.0.0/24"), "{}", at_node(&net));
    everything_passes(&net, api);
    net.within("n2", || overlay.as_mut().unwrap().clear());
    let left = at_node(&net);
    assert!(["comity", "table 51872", "lookup 51872", "10.82.0.0"].iter().all(|what| !left.contains(what)), "{left}");

    // When the last other node leaves, the gateway removes its end.
    net.within("go", || origin.set_nodes(&nodes(&[])[..1])).unwrap();
    assert_eq!(origin.published(), None);
    let links = ip(&format!("-n {} link show", net.name("go")));
    let rules = ip(&format!("-n {} rule show", net.name("go")));
    assert!(!links.contains("comity0v") && !rules.contains("51872"), "{links}{rules}");
    drop((exposure, led));
    net.within("go", || origin_runtime.block_on(origin.shutdown()));
    net.within("gd", || drop(donor));
}

fn everything_passes(net: &Net, api: SocketAddr) {
    // Here the overlay's MTU is below the tunnel's.
    net.talk("p2", (POD_D, PORT), MEBIBYTE).unwrap();
    net.talk("pd", (POD_2, PORT), MEBIBYTE).unwrap();
    assert!(net.ping("p2", POD_D) && net.ping("pd", POD_2));
    // Only Liqo's pod reaches the donor's API.
    net.talk("p2", api, 100_000).unwrap();
    assert!(net.talk("n2", api, 1).is_err());
}

const MEBIBYTE: usize = 1 << 20;

/// Only the other end may send to the overlay's port.
fn nobody_speaks_in_the_gateways_place(net: &Net) {
    for (node, own, pod) in [("n2", NODE, "p2"), ("go", GATEWAY, "po")] {
        let before = dropped(net, node);
        net.within(pod, || {
            let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.send_to(&[8, 0, 0, 0, 0, 0xca, 0xa0, 0], (own, 51872)).unwrap();
        });
        let end = Instant::now() + SOON;
        while dropped(net, node) == before {
            assert!(Instant::now() < end, "{}", net.nft(node));
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// UDP datagrams for the overlay's port that the firewall dropped: a counter before its rules minus one after them.
fn dropped(net: &Net, node: &str) -> i64 {
    let rules = net.nft(node);
    if !rules.contains("table inet spy") {
        let name = net.name(node);
        for rule in [
            "table inet spy",
            "chain inet spy before { type filter hook input priority -10 ; }",
            "chain inet spy behind { type filter hook input priority 10 ; }",
        ] {
            ip(&format!("netns exec {name} nft add {rule}"));
        }
        for chain in ["before", "behind"] {
            ip(&format!("netns exec {name} nft add rule inet spy {chain} udp dport 51872 counter"));
        }
        return 0;
    }
    let mut counts = rules.lines().filter(|line| line.contains("udp dport 51872 counter packets")).map(|line| {
        line.split_whitespace().skip_while(|word| *word != "packets").nth(1).unwrap().parse::<i64>().unwrap()
    });
    counts.next().unwrap() - counts.next().unwrap()
}
