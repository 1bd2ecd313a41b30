//! Both clusters have pods at the same addresses: pod-o 10.244.0.2 ─ gw-o ═ tunnel ═ gw-d ─ pod-d 10.244.0.2.

use std::net::UdpSocket;

use comity_agent_fabric::PlacementRequest;
use ipnet::Ipv4Net;

use super::*;

/// The address of the pod in its own cluster, on both sides.
const POD: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 2);
const PODS: &str = "10.244.0.0/24";
/// A port of the pods at which nobody listens.
const CLOSED: u16 = 8081;

/// One end of the tunnel.
struct End<'a> {
    net: &'a Net,
    gateway: &'static str,
    pod: &'static str,
    runtime: Runtime,
    fabric: Fabric,
    /// The other side's pods, as this side sees them.
    seen: Ipv4Net,
}

impl<'a> End<'a> {
    /// Starts a side that sees the other side's pods at addresses of `pool`.
    fn start(net: &'a Net, gateway: &'static str, pod: &'static str, pool: &str, config: PeerConfig) -> Self {
        let runtime = runtime(net, gateway);
        let settings = TunSettings { remap: vec![pool.parse().unwrap()], ..TunSettings::default() };
        let fabric = bind_with(net, gateway, &runtime, settings).unwrap();
        let networks: [Ipv4Net; 1] = [PODS.parse().unwrap()];
        let request = PlacementRequest {
            peering: &config.peering,
            cluster: &config.remote_cluster,
            networks: &networks,
            endpoints: &config.endpoints,
            listed: &networks,
            own: &[],
            chosen: &[],
            taken: &[],
        };
        // The node's route to its own pods is the conflict.
        let routes = net.within(gateway, || fabric.place(&request)).unwrap();
        assert!(routes[0].is_remapped(), "{routes:?}");
        let (seen, config) = (routes[0].here, PeerConfig { routes, ..config });
        net.within(gateway, || runtime.block_on(async { fabric.add_peer(config) })).unwrap();
        Self { net, gateway, pod, runtime, fabric, seen }
    }

    /// The address at which this side sees the other side's pod.
    fn other_pod(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.seen.network().to_bits() | 2)
    }

    fn allow(&self) {
        let reach = Reach { remote: [self.other_pod().into()].into(), local: [POD.into()].into(), ..Reach::default() };
        self.set(reach);
    }

    fn set(&self, reach: Reach) {
        self.net.within(self.gateway, || self.fabric.set_reachable("tun-test", reach)).unwrap();
    }

    /// The source address that this side's pod sees of the other side's pod.
    fn source_seen_by_pod(&self, other: &End<'_>) -> Ipv4Addr {
        let receiver = self.net.within(self.pod, || UdpSocket::bind((POD, 0)).unwrap());
        receiver.set_read_timeout(Some(SOON)).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let sender = self.net.within(other.pod, || UdpSocket::bind((POD, 0)).unwrap());
        sender.set_read_timeout(Some(SOON)).unwrap();
        sender.send_to(b"question", (other.other_pod(), port)).unwrap();
        let mut datagram = [0; 16];
        let (length, from) = receiver.recv_from(&mut datagram).unwrap();
        assert_eq!(&datagram[..length], b"question");
        receiver.send_to(b"answer", from).unwrap();
        let (length, answered_by) = sender.recv_from(&mut datagram).unwrap();
        assert_eq!((&datagram[..length], answered_by), (&b"answer"[..], (other.other_pod(), port).into()));
        match from.ip() {
            IpAddr::V4(from) => from,
            IpAddr::V6(from) => panic!("{from}"),
        }
    }

    /// Whether the other side's pod refuses a datagram, as an ICMP error tells this side's pod.
    fn is_refused_by_icmp(&self) -> bool {
        let socket = self.net.within(self.pod, || UdpSocket::bind((POD, 0)).unwrap());
        socket.connect((self.other_pod(), CLOSED)).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket.send(b"question").unwrap();
        socket.recv(&mut [0; 16]).unwrap_err().kind() == ErrorKind::ConnectionRefused
    }
}

#[test]
fn pods_at_the_same_addresses_reach_each_other_at_ranges_that_each_side_chooses() {
    if !comity_testkit::requirements::met("fabric_tun, remapped", &missing()) {
        return;
    }
    let net = Net::with_pods("cfm", "10.244.0", "10.244.0");
    let (origin_config, donor_config) = sides();
    let origin = End::start(&net, "go", "po", "100.64.0.0/10", origin_config);
    let donor = End::start(&net, "gd", "pd", "198.18.0.0/15", donor_config);
    let peer = origin.fabric.peer("tun-test").unwrap();
    origin.runtime.block_on(peer.wait_handshake(SOON)).unwrap();
    for (name, port) in [("pd", PORT), ("po", PORT), ("pd", KUBELET)] {
        net.echo(name, POD, port);
    }

    // Nothing is allowed yet, and one side's permission is not enough.
    assert!(net.is_dropped("po", (origin.other_pod(), PORT)));
    origin.allow();
    assert!(net.is_dropped("po", (origin.other_pod(), PORT)));
    donor.allow();
    for (from, to) in [("po", origin.other_pod()), ("pd", donor.other_pod())] {
        net.talk(from, (to, PORT), 1 << 20).unwrap();
        assert!(net.ping(from, to));
    }
    assert_eq!(donor.source_seen_by_pod(&origin), donor.other_pod());
    assert_eq!(origin.source_seen_by_pod(&donor), origin.other_pod());
    assert!(origin.is_refused_by_icmp() && donor.is_refused_by_icmp());
    // Each cluster's own pod still has the address itself, and the kubelet's port stays closed.
    net.talk("go", (POD, PORT), 100).unwrap();
    assert!(net.is_dropped("po", (origin.other_pod(), KUBELET)));
    // Another address of the range is not allowed.
    assert!(net.is_dropped("po", (Ipv4Addr::from_bits(origin.other_pod().to_bits() + 1), PORT)));
    for gateway in ["go", "gd"] {
        assert!(net.fragments(gateway).chars().all(|digit| digit == '0'), "{}", net.fragments(gateway));
    }

    // A removed permission ends open connections at once.
    let mut open = net.within("po", || TcpStream::connect((origin.other_pod(), PORT))).unwrap();
    open.set_read_timeout(Some(DROPPED)).unwrap();
    origin.set(Reach::default());
    open.write_all(b"more").unwrap();
    assert!(open.read(&mut [0; 4]).is_err());

    for End { gateway, runtime, fabric, .. } in [origin, donor] {
        assert!(net.within(gateway, || fabric.remove_peer("tun-test")));
        let routes = ip(&format!("-n {} route show dev comity0", net.name(gateway)));
        assert!(routes.is_empty(), "{routes}");
        net.within(gateway, || runtime.block_on(fabric.shutdown()));
        assert!(!net.nft(gateway).contains("comity"), "{}", net.nft(gateway));
    }
}
