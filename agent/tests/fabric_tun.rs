//! Mode `tun` between two gateways with a pod behind each, in four network
//! namespaces: pod-o 10.81.0.2 ─ gw-o ═ tunnel ═ gw-d ─ pod-d 10.82.0.2.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "fabric_tun/overlay.rs"]
mod overlay;
#[path = "fabric_tun/remapped.rs"]
mod remapped;
#[path = "fabric_tun/takeover.rs"]
mod takeover;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use comity_agent_fabric::{
    Fabric, FabricConfig, FabricError, FabricMode, PeerConfig, PodNetwork, PresharedKey, Reach, Role, TunSettings,
    WireguardKey, expose, fabric_addresses, forward_api, forward_local,
};
use comity_agent_kubernetes::api::{connect_to_donor, donor_client};
use comity_agent_model::api_port::API_PORT;
use comity_agent_model::forward_target::client_check::ClientCheck;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};

const SOON: Duration = Duration::from_secs(10);
/// How long the test waits for a packet that must not arrive.
const DROPPED: Duration = Duration::from_millis(1500);
const UDP_PORT: u16 = 51871;
const PORT: u16 = 8080;
const KUBELET: u16 = 10250;
const POD_O: Ipv4Addr = Ipv4Addr::new(10, 81, 0, 2);
const POD_D: Ipv4Addr = Ipv4Addr::new(10, 82, 0, 2);
/// An address without a host: only the tunnel leads to it.
const REMOTE_API: &str = "203.0.113.10:6443";

/// Admits nobody but the host itself.
struct Nobody;

impl ClientCheck for Nobody {
    fn admits(&self, _client: IpAddr) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(std::future::ready(false))
    }
}

fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Four namespaces and those of a further node, removed at the end.
struct Net {
    prefix: String,
}

impl Net {
    fn named(test: &str) -> Self {
        Self::with_pods(test, "10.81.0", "10.82.0")
    }

    /// `origin` and `donor` are the first three bytes of the pods' addresses.
    fn with_pods(test: &str, origin: &str, donor: &str) -> Self {
        let net = Self { prefix: format!("{test}{}", std::process::id()) };
        for name in ["po", "go", "gd", "pd"] {
            ip(&format!("netns add {}", net.name(name)));
            ip(&format!("-n {} link set lo up", net.name(name)));
        }
        net.join("go", "192.0.2.1/24", "gd", "192.0.2.2/24");
        for (gateway, pod, network) in [("go", "po", origin), ("gd", "pd", donor)] {
            net.join(gateway, &format!("{network}.1/24"), pod, &format!("{network}.2/24"));
            ip(&format!("-n {} route add default via {network}.1", net.name(pod)));
        }
        // Every node has some route to everywhere.
        ip(&format!("-n {} route add default via 192.0.2.2", net.name("go")));
        for gateway in ["go", "gd"] {
            net.within(gateway, || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
        }
        net
    }

    fn name(&self, short: &str) -> String {
        format!("{}-{short}", self.prefix)
    }

    fn join(&self, one: &str, address: &str, other: &str, other_address: &str) {
        let (one_ns, other_ns) = (self.name(one), self.name(other));
        ip(&format!("-n {one_ns} link add to-{other} type veth peer name to-{one} netns {other_ns}"));
        for (ns, link, address) in
            [(one_ns, format!("to-{other}"), address), (other_ns, format!("to-{one}"), other_address)]
        {
            ip(&format!("-n {ns} address add {address} dev {link}"));
            ip(&format!("-n {ns} link set {link} up"));
        }
    }

    /// Runs code and its threads in a namespace.
    fn within<R: Send>(&self, short: &str, work: impl FnOnce() -> R + Send) -> R {
        let namespace = File::open(format!("/run/netns/{}", self.name(short))).unwrap();
        let enter = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    /// Echoes data sent to a port while the test runs.
    fn echo(&self, short: &str, address: Ipv4Addr, port: u16) {
        self.within(short, || {
            let listener = TcpListener::bind((address, port)).unwrap();
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    std::thread::spawn(move || {
                        let mut buffer = [0; 65536];
                        while let Ok(length @ 1..) = stream.read(&mut buffer) {
                            if stream.write_all(&buffer[..length]).is_err() {
                                break;
                            }
                        }
                    });
                }
            });
        });
    }

    /// Sends bytes from a namespace and expects them back.
    fn talk(&self, from: &str, to: impl Into<SocketAddr>, bytes: usize) -> std::io::Result<()> {
        let to = to.into();
        self.within(from, || {
            let mut stream = TcpStream::connect_timeout(&to, DROPPED)?;
            stream.set_read_timeout(Some(SOON))?;
            let mut sender = stream.try_clone()?;
            let sent: Vec<u8> = (0..bytes).map(|byte| (byte * 31) as u8).collect();
            let (copy, mut back) = (sent.clone(), vec![0; bytes]);
            let writer = std::thread::spawn(move || sender.write_all(&copy));
            stream.read_exact(&mut back)?;
            writer.join().unwrap()?;
            assert!(sent == back, "what came back is not what was sent");
            stream.shutdown(Shutdown::Both)
        })
    }

    fn is_dropped(&self, from: &str, to: (Ipv4Addr, u16)) -> bool {
        self.talk(from, to, 1).is_err_and(|error| error.kind() == ErrorKind::TimedOut)
    }

    /// Whether an echo request is answered.
    fn ping(&self, from: &str, to: Ipv4Addr) -> bool {
        use socket2::{Domain, Protocol, Socket, Type};
        self.within(from, || {
            let mut socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
            socket.set_read_timeout(Some(DROPPED)).unwrap();
            socket.connect(&SocketAddr::from((to, 0)).into()).unwrap();
            // Type 8, identifier 0x4242, number 1, and the sum of these.
            socket.write_all(&[8, 0, 0xb5, 0xbc, 0x42, 0x42, 0, 1]).unwrap();
            let mut answer = [0; 128];
            let end = Instant::now() + DROPPED;
            while Instant::now() < end {
                if let Ok(length @ 28..) = socket.read(&mut answer)
                    && answer[20] == 0
                    && answer[24..length.min(28)] == [0x42, 0x42, 0, 1]
                {
                    return true;
                }
            }
            false
        })
    }

    /// Packets that were fragmented or reassembled on the way.
    fn fragments(&self, short: &str) -> String {
        let snmp = self.within(short, || std::fs::read_to_string("/proc/net/snmp").unwrap());
        let mut lines = snmp.lines().filter(|line| line.starts_with("Ip:"));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let wanted = |name: &str| name.starts_with("Frag") || name.starts_with("Reasm");
        names.split(' ').zip(values.split(' ')).filter(|(name, _)| wanted(name)).map(|(_, value)| value).collect()
    }

    fn nft(&self, short: &str) -> String {
        let output = Command::new("ip").args(["netns", "exec", &self.name(short), "nft", "list", "ruleset"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in ["po", "go", "gd", "pd", "n2", "p2"] {
            let _ = Command::new("ip").args(["netns", "delete", &self.name(name)]).stderr(Stdio::null()).status();
        }
    }
}

fn missing() -> Vec<String> {
    let mut missing = Vec::new();
    if !is_root() {
        missing.push("root, for network namespaces".to_owned());
    }
    if !std::path::Path::new("/dev/net/tun").exists() {
        missing.push("/dev/net/tun".to_owned());
    }
    for program in ["ip", "nft"] {
        if Command::new(program).arg("-V").output().is_err() {
            missing.push(format!("the program {program}"));
        }
    }
    missing
}

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").unwrap().contains("Uid:\t0\t0\t")
}

fn runtime(net: &Net, short: &str) -> Runtime {
    net.within(short, || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap())
}

fn bind(net: &Net, short: &str, runtime: &Runtime) -> Result<Fabric, FabricError> {
    bind_with(net, short, runtime, TunSettings::default())
}

fn bind_with(net: &Net, short: &str, runtime: &Runtime, settings: TunSettings) -> Result<Fabric, FabricError> {
    let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, UDP_PORT));
    let began = Instant::now();
    loop {
        let config = FabricConfig { listen, mode: FabricMode::Tun(settings.clone()) };
        let bound = net.within(short, || runtime.block_on(Fabric::bind(config)));
        // A program that another test starts has a copy of the last fabric's socket until its exec.
        match bound {
            Err(FabricError::Bind { source, .. })
                if source.kind() == ErrorKind::AddrInUse && began.elapsed() < SOON => {}
            bound => return bound,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits: a program that another test starts has a copy of the device's descriptor until its exec.
fn tunnel_device_goes(net: &Net, short: &str) {
    let began = Instant::now();
    loop {
        let links = ip(&format!("-n {} link show", net.name(short)));
        if !links.contains("comity0") {
            return;
        }
        assert!(began.elapsed() < SOON, "{links}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn sides() -> (PeerConfig, PeerConfig) {
    let (donor, origin) = (WireguardKey::generate().unwrap(), WireguardKey::generate().unwrap());
    let addresses = fabric_addresses("tun-test", 1);
    let at_origin = PeerConfig {
        peering: "tun-test".to_owned(),
        epoch: 1,
        local_secret: origin.clone(),
        remote_public: donor.public(),
        preshared: PresharedKey::generate().unwrap(),
        endpoints: vec![SocketAddr::from(([192, 0, 2, 2], UDP_PORT))],
        local_address: addresses.origin,
        remote_address: addresses.donor,
        keepalive: Duration::from_secs(25),
        role: Role::Origin,
        remote_cluster: "donor".to_owned(),
        routes: vec![unchanged("10.82.0.0/24")],
        remote_api: Some(REMOTE_API.parse().unwrap()),
    };
    let at_donor = PeerConfig {
        local_secret: donor,
        remote_public: origin.public(),
        endpoints: Vec::new(),
        local_address: addresses.donor,
        remote_address: addresses.origin,
        role: Role::Donor,
        remote_cluster: "origin".to_owned(),
        routes: vec![unchanged("10.81.0.0/24")],
        remote_api: None,
        ..at_origin.clone()
    };
    (at_origin, at_donor)
}

fn unchanged(network: &str) -> PodNetwork {
    PodNetwork::unchanged(network.parse().unwrap())
}

fn reach(remote: &str, local: &str) -> Reach {
    Reach { remote: [remote.parse().unwrap()].into(), local: [local.parse().unwrap()].into(), ..Reach::default() }
}

#[test]
fn pods_reach_each_other_as_far_as_they_may_and_nothing_is_left() {
    if !comity_testkit::requirements::met("fabric_tun", &missing()) {
        return;
    }
    let net = Net::named("cft");
    let (origin_runtime, donor_runtime) = (runtime(&net, "go"), runtime(&net, "gd"));
    let origin = bind(&net, "go", &origin_runtime).unwrap();
    let donor = bind(&net, "gd", &donor_runtime).unwrap();
    let at_origin = |work: &mut (dyn FnMut() + Send)| {
        net.within("go", || {
            let _guard = origin_runtime.enter();
            work();
        });
    };
    let (origin_config, donor_config) = sides();
    let (origin_peer, donor_peer) = (
        net.within("go", || origin_runtime.block_on(async { origin.add_peer(origin_config.clone()) })).unwrap(),
        net.within("gd", || donor_runtime.block_on(async { donor.add_peer(donor_config) })).unwrap(),
    );
    origin_runtime.block_on(origin_peer.wait_handshake(SOON)).unwrap();

    for port in [PORT, KUBELET] {
        net.echo("pd", POD_D, port);
        net.echo("po", POD_O, port);
    }
    net.echo("gd", Ipv4Addr::LOCALHOST, 7000);

    // Nothing is allowed yet.
    assert!(net.is_dropped("po", (POD_D, PORT)) && !net.ping("po", POD_D));
    // One side's permission is not enough.
    at_origin(&mut || origin.set_reachable("tun-test", reach("10.82.0.2/32", "10.81.0.0/24")).unwrap());
    assert!(net.is_dropped("po", (POD_D, PORT)));
    net.within("gd", || donor.set_reachable("tun-test", reach("10.81.0.0/24", "10.82.0.2/32"))).unwrap();
    net.talk("po", (POD_D, PORT), 100).unwrap();
    net.talk("pd", (POD_O, PORT), 100).unwrap();
    assert!(net.ping("po", POD_D) && net.ping("pd", POD_O));
    // The kubelet's port stays closed, and so does the gateway itself.
    assert!(net.is_dropped("po", (POD_D, KUBELET)) && net.is_dropped("pd", (POD_O, KUBELET)));
    assert!(net.is_dropped("po", (Ipv4Addr::new(10, 82, 0, 1), PORT)));

    // A mebibyte there and back, without fragments.
    net.talk("po", (POD_D, PORT), 1 << 20).unwrap();
    for gateway in ["go", "gd"] {
        assert!(net.fragments(gateway).chars().all(|digit| digit == '0'), "{}", net.fragments(gateway));
    }

    // The donor's API: from Liqo's pods, from the node, and from the agent.
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, 7000)).into();
    let exposure =
        net.within("gd", || donor_runtime.block_on(async { expose(&donor_peer, API_PORT, target) })).unwrap();
    let api: SocketAddr = REMOTE_API.parse().unwrap();
    assert!(origin_peer.forwards_api() && !donor_peer.forwards_api());
    let forwarded = net.within("go", || origin_runtime.block_on(async { forward_api(&origin_peer) })).unwrap();
    // Other pods keep their way to that address, where nobody is.
    assert!(net.talk("po", api, 1).is_err());
    let with_client = || Reach { api_clients: [POD_O.into()].into(), ..reach("10.82.0.2/32", "10.81.0.0/24") };
    at_origin(&mut || origin.set_reachable("tun-test", with_client()).unwrap());
    net.talk("po", api, 1000).unwrap();
    // Only by the API server's own address.
    let shown = ip(&format!("-n {} -4 address show dev comity0", net.name("go")));
    let own = shown.split_whitespace().skip_while(|word| *word != "inet").nth(1).unwrap();
    let own: Ipv4Addr = own.split('/').next().unwrap().parse().unwrap();
    assert!(net.is_dropped("po", (own, API_PORT)), "{own}");
    assert!(net.talk("po", SocketAddr::from(([10, 81, 0, 1], API_PORT)), 1).is_err());
    let attempts = async {
        user_of_the_agent_is_redirected_to_a_donor(&net, api).await;
    };
    net.within("go", || origin_runtime.block_on(attempts));
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let member = tokio::sync::watch::channel(false).1;
    let forward =
        |bind| origin_runtime.block_on(forward_local(&origin_peer, bind, API_PORT, Arc::new(Nobody), member.clone()));
    let on_loopback = net.within("go", || forward(local)).unwrap();
    net.talk("go", on_loopback.local_addr(), 100_000).unwrap();
    // A pod is not this host: it needs to be admitted.
    let on_pods = net.within("go", || forward(SocketAddr::from(([10, 81, 0, 1], 0)))).unwrap();
    net.talk("go", on_pods.local_addr(), 1000).unwrap();
    assert!(net.talk("po", on_pods.local_addr(), 1).is_err());

    the_line_is_cut(&net, api);

    // A removed permission ends open connections at once.
    let mut open = net.within("po", || TcpStream::connect((POD_D, PORT))).unwrap();
    open.set_read_timeout(Some(DROPPED)).unwrap();
    at_origin(&mut || origin.set_reachable("tun-test", Reach::default()).unwrap());
    open.write_all(b"more").unwrap();
    assert!(open.read(&mut [0; 4]).is_err());
    assert!(net.is_dropped("po", (POD_D, PORT)));

    // A network that overlaps with this node's own is refused.
    let overlapping = PeerConfig { epoch: 2, routes: vec![unchanged("10.81.0.0/16")], ..origin_config };
    at_origin(&mut || {
        let error = origin.add_peer(overlapping.clone()).unwrap_err().to_string();
        assert!(error.contains("10.81.0.0/16") && error.contains("10.81.0.0/24"), "{error}");
    });

    drop((exposure, on_loopback, on_pods, forwarded));
    at_origin(&mut || assert!(origin.remove_peer("tun-test")));
    let routes = ip(&format!("-n {} route show dev comity0", net.name("go")));
    let addresses = ip(&format!("-n {} -4 address show dev comity0", net.name("go")));
    assert!(routes.is_empty() && addresses.is_empty(), "{routes}{addresses}");
    assert!(!net.nft("go").contains("203.0.113.10"), "{}", net.nft("go"));
    net.within("go", || origin_runtime.block_on(origin.shutdown()));
    net.within("gd", || drop(donor));
    for gateway in ["go", "gd"] {
        tunnel_device_goes(&net, gateway);
        assert!(!net.nft(gateway).contains("comity"), "{}", net.nft(gateway));
    }
}

/// A connection to the donor's API ends soon after the line is cut, before TCP's timeout; a new one waits for the line.
fn the_line_is_cut(net: &Net, api: SocketAddr) {
    let line = |state: &str| ip(&format!("-n {} link set to-gd {state}", net.name("go")));
    let mut open = net.within("po", || TcpStream::connect(api)).unwrap();
    open.write_all(b"a").unwrap();
    open.read_exact(&mut [0; 1]).unwrap();
    line("down");
    open.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let began = Instant::now();
    let ended = loop {
        match open.read(&mut [0; 1]).unwrap_err() {
            // A signal to the test program, as when it is stopped and goes on.
            error if error.kind() == ErrorKind::Interrupted => {}
            error => break error,
        }
    };
    assert_eq!(ended.kind(), ErrorKind::ConnectionReset, "after {:?}", began.elapsed());
    std::thread::scope(|scope| {
        let held = scope.spawn(|| net.talk("po", api, 1000).map(|()| Instant::now()));
        std::thread::sleep(Duration::from_secs(4));
        line("up");
        // The kernel removes the routes of a link that is down.
        ip(&format!("-n {} route replace default via 192.0.2.2", net.name("go")));
        let back = Instant::now();
        let answered = held.join().unwrap().unwrap();
        println!(
            "an idle connection ended {:?} after the cut, a held one was answered {:?} after the line came back",
            back.duration_since(began),
            answered.duration_since(back)
        );
    });
}

/// Other processes of the agent's user, such as the kubelet, keep their way to the address that a donor chose.
async fn user_of_the_agent_is_redirected_to_a_donor(net: &Net, api: SocketAddr) {
    assert!(net.talk("go", api, 1).is_err(), "another program of the same user reached the donor");
    let mut stream = connect_to_donor(api).await.unwrap();
    stream.write_all(b"comity").await.unwrap();
    let mut back = [0; 6];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"comity");
    // What answers is no API server: it returns the greeting.
    let mut config = kube::Config::new(format!("https://{api}").parse().unwrap());
    config.connect_timeout = Some(SOON);
    let answered = donor_client(config).unwrap().apiserver_version().await;
    let error = format!("{:?}", answered.unwrap_err());
    assert!(error.contains("InappropriateHandshakeMessage"), "{error}");
}

#[test]
fn leftovers_of_a_killed_run_are_replaced_and_other_links_kept() {
    if !comity_testkit::requirements::met("fabric_tun", &missing()) {
        return;
    }
    let net = Net { prefix: format!("cfu{}", std::process::id()) };
    let name = net.name("go");
    ip(&format!("netns add {name}"));
    ip(&format!("netns exec {name} ip tuntap add dev comity0 mode tun"));
    ip(&format!("netns exec {name} nft add table inet comity"));
    ip(&format!("netns exec {name} nft add chain inet comity old"));
    let runtime = runtime(&net, "go");
    let fabric = bind(&net, "go", &runtime).unwrap();
    assert!(net.nft("go").contains("chain forward") && !net.nft("go").contains("chain old"), "{}", net.nft("go"));
    net.within("go", || runtime.block_on(fabric.shutdown()));
    tunnel_device_goes(&net, "go");
    ip(&format!("-n {name} link add comity0 type veth peer name other"));
    let error = bind(&net, "go", &runtime).unwrap_err().to_string();
    assert!(error.contains("comity0") && error.contains("no tun device"), "{error}");
}
