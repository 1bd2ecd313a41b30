//! A second gateway of the donor takes over while a pod of the origin talks to a pod of the donor.
//!
//! ```text
//! pod-o ─ gw-o ═ tunnel ═ gw-d  ─ pod-d 10.82.0.2
//!              ╚═ tunnel ═ gw-d2 ─┘
//! ```

use comity_agent_fabric::Fence;
use comity_agent_model::boot_time::BootTime;

use super::*;

/// The second gateway, as the origin reaches it.
const SECOND: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// More than the fabric's 2 s of patience and TCP's retransmissions take on a busy machine.
const TAKEOVER: Duration = Duration::from_secs(15);

fn second_gateway(net: &Net) {
    ip(&format!("netns add {}", net.name("n2")));
    ip(&format!("-n {} link set lo up", net.name("n2")));
    net.join("go", "198.51.100.1/24", "n2", &format!("{SECOND}/24"));
    net.join("n2", "10.83.0.1/24", "pd", "10.83.0.2/24");
    ip(&format!("-n {} route add {POD_D}/32 via 10.83.0.2", net.name("n2")));
    net.within("n2", || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
}

/// A gateway of the donor with the state that all its replicas share.
fn donor_gateway(net: &Net, gateway: &str, runtime: &Runtime, config: &PeerConfig, fence: Fence) -> Fabric {
    let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, UDP_PORT));
    let fabric = FabricConfig { listen, mode: FabricMode::Tun(TunSettings::default()) };
    net.within(gateway, || {
        let fabric = runtime.block_on(Fabric::bind_fenced(fabric, fence)).unwrap();
        runtime.block_on(async { fabric.add_peer(config.clone()) }).unwrap();
        fabric.set_reachable("tun-test", reach("10.81.0.0/24", "10.82.0.2/32")).unwrap();
        fabric
    })
}

fn exchange(stream: &mut TcpStream, word: &[u8; 4]) {
    stream.write_all(word).unwrap();
    let mut back = [0; 4];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, word);
}

#[test]
fn an_open_connection_goes_on_through_a_second_gateway() {
    if !comity_testkit::requirements::met("fabric_tun, takeover", &missing()) {
        return;
    }
    let net = Net::named("cfk");
    second_gateway(&net);
    let runtimes = [runtime(&net, "go"), runtime(&net, "gd"), runtime(&net, "n2")];
    let (mut origin_config, donor_config) = sides();
    origin_config.endpoints.push(SocketAddr::from((SECOND, UDP_PORT)));
    let origin = bind(&net, "go", &runtimes[0]).unwrap();
    let peer = net.within("go", || {
        let peer = runtimes[0].block_on(async { origin.add_peer(origin_config) }).unwrap();
        origin.set_reachable("tun-test", reach("10.82.0.2/32", "10.81.0.0/24")).unwrap();
        peer
    });
    let fence = Fence::closed();
    fence.extend_until(BootTime::now() + Duration::from_secs(600));
    let _first = donor_gateway(&net, "gd", &runtimes[1], &donor_config, fence.clone());
    runtimes[0].block_on(peer.wait_handshake(SOON)).unwrap();
    net.echo("pd", POD_D, PORT);
    let mut stream = net.within("po", || TcpStream::connect((POD_D, PORT))).unwrap();
    stream.set_read_timeout(Some(TAKEOVER)).unwrap();
    exchange(&mut stream, b"one.");

    // From here on the first gateway forwards nothing, as one that was killed or paused.
    fence.close();
    let start = Instant::now();
    stream.write_all(b"two.").unwrap();
    let _second = donor_gateway(&net, "n2", &runtimes[2], &donor_config, Fence::always_open());
    // As comity-agent node does on the pod's node.
    ip(&format!("-n {} route replace default via 10.83.0.1", net.name("pd")));
    let mut back = [0; 4];
    stream.read_exact(&mut back).unwrap();
    println!("the connection stood still for {:?}", start.elapsed());
    assert_eq!(&back, b"two.");
    assert!(start.elapsed() < TAKEOVER, "{:?}", start.elapsed());
    assert_eq!(peer.status().endpoint, Some(SocketAddr::from((SECOND, UDP_PORT))));
    exchange(&mut stream, b"tre.");
}
