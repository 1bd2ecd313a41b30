//! Measures mode `tun` between two network namespaces, and wireguard-go in the
//! same place with the same addresses. Needs root, `ip`, `nft`, `iperf3`; with
//! `--beside` also `wg`.
//!
//! ```text
//! cargo run --release -p comity-agent --example fabric_tun -- [--seconds N] [--beside PATH_TO_WIREGUARD_GO]
//! ```
//!
//! Prints the throughput of one TCP stream each way, the median round trip of one byte, and the peak memory of each
//! process. Both ends share this machine's cores.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_fabric::{
    Fabric, FabricConfig, FabricMode, PeerConfig, PresharedKey, Role, TunSettings, WireguardKey, WireguardPublicKey,
    fabric_addresses,
};
use comity_agent_model::api_port::API_PORT;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const PEERING: &str = "throughput";
// The port that a donor answers on.
const PORT: u16 = API_PORT;
const UDP_PORT: u16 = 51871;
const NAMESPACES: [&str; 2] = ["cfb-origin", "cfb-donor"];
const ROUND_TRIPS: usize = 2000;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["serve", role, keys @ ..] = words.as_slice() {
        return serve(role, keys);
    }
    let (mut seconds, mut beside) = (5, None);
    for option in words.chunks(2) {
        match option {
            ["--seconds", value] => seconds = value.parse()?,
            ["--beside", value] => beside = Some(*value),
            other => bail!("{other:?} is not an option; see the head of this file"),
        }
    }
    let _network = Network::new()?;
    let ours = measure("comity", &start_ours()?, seconds)?;
    if let Some(path) = beside {
        let theirs = measure("wireguard-go", &start_theirs(path)?, seconds)?;
        println!("ratio         {:.2} forth, {:.2} back", ours.0 / theirs.0, ours.1 / theirs.1);
    }
    Ok(())
}

fn run(program: &str, arguments: &str) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments.split(' ')).output().with_context(|| program.to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    anyhow::ensure!(
        output.status.success(),
        "{program} {arguments}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// Two namespaces with a veth between them.
struct Network;

impl Network {
    fn new() -> anyhow::Result<Self> {
        let network = Self;
        let [origin, donor] = NAMESPACES;
        for name in NAMESPACES {
            run("ip", &format!("netns add {name}"))?;
            run("ip", &format!("-n {name} link set lo up"))?;
        }
        run("ip", &format!("-n {origin} link add veth0 type veth peer name veth0 netns {donor}"))?;
        for (host, name) in NAMESPACES.iter().enumerate() {
            run("ip", &format!("-n {name} address add 192.0.2.{}/24 dev veth0", host + 1))?;
            run("ip", &format!("-n {name} link set veth0 up"))?;
        }
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in NAMESPACES {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

/// The processes at both ends, ended when this is dropped.
struct Ends(Vec<Child>);

impl Drop for Ends {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Our own process ends with its input; wireguard-go must be killed.
            if child.stdin.take().is_none() {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

fn start_ours() -> anyhow::Result<Ends> {
    let (origin, donor) = (WireguardKey::generate()?, WireguardKey::generate()?);
    let preshared = PresharedKey::generate()?;
    let mut ends = Ends(Vec::new());
    for (name, role, local, remote) in
        [(NAMESPACES[0], "origin", &origin, &donor), (NAMESPACES[1], "donor", &donor, &origin)]
    {
        let keys = [*local.to_bytes(), remote.public().to_bytes(), *preshared.to_bytes()];
        let mut child = Command::new("ip")
            .args(["netns", "exec", name])
            .arg(std::env::current_exe()?)
            .args(["serve", role])
            .args(keys.map(|key| STANDARD.encode(key)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let ready = child.stdout.take().context("no output")?.read_exact(&mut [0; 6]);
        ends.0.push(child);
        ready.context("the fabric did not start")?;
    }
    Ok(ends)
}

/// One end, in its own process, until its input ends.
#[tokio::main]
async fn serve(role: &str, keys: &[&str]) -> anyhow::Result<()> {
    let keys: Vec<[u8; 32]> = (keys.iter())
        .map(|key| STANDARD.decode(key)?.try_into().map_err(|_| anyhow::anyhow!("a key has 32 bytes")))
        .collect::<anyhow::Result<_>>()?;
    let [local, remote, preshared] = keys.as_slice() else { bail!("three keys") };
    let addresses = fabric_addresses(PEERING, 1);
    let (role, other, local_address, remote_address) = match role {
        "donor" => (Role::Donor, 1, addresses.donor, addresses.origin),
        _ => (Role::Origin, 2, addresses.origin, addresses.donor),
    };
    let listen = SocketAddr::from(([0, 0, 0, 0], UDP_PORT));
    let fabric = Fabric::bind(FabricConfig { listen, mode: FabricMode::Tun(TunSettings::default()) }).await?;
    fabric.add_peer(PeerConfig {
        peering: PEERING.to_owned(),
        epoch: 1,
        local_secret: WireguardKey::from_bytes(*local),
        remote_public: WireguardPublicKey::from_bytes(*remote),
        preshared: PresharedKey::from_bytes(*preshared),
        endpoints: vec![SocketAddr::from(([192, 0, 2, other], UDP_PORT))],
        local_address,
        remote_address,
        keepalive: Duration::from_secs(25),
        role,
        remote_cluster: "other".to_owned(),
        routes: Vec::new(),
        remote_api: None,
    })?;
    println!("ready");
    tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await??;
    fabric.shutdown().await;
    Ok(())
}

fn start_theirs(path: &str) -> anyhow::Result<Ends> {
    let keys = [WireguardKey::generate()?, WireguardKey::generate()?];
    let addresses = fabric_addresses(PEERING, 1);
    let inner = [addresses.origin, addresses.donor];
    let mut ends = Ends(Vec::new());
    for (end, name) in NAMESPACES.iter().enumerate() {
        let device = format!("cfb{end}");
        let socket = format!("/var/run/wireguard/{device}.sock");
        // An earlier run that was killed leaves it.
        let _ = std::fs::remove_file(&socket);
        let child = Command::new("ip")
            .args(["netns", "exec", name, path, "-f", &device])
            .env("LOG_LEVEL", "silent")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        ends.0.push(child);
        let start = Instant::now();
        while !std::path::Path::new(&socket).exists() {
            anyhow::ensure!(start.elapsed() < Duration::from_secs(10), "wireguard-go did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        let key_file = tempfile(&STANDARD.encode(*keys[end].to_bytes()))?;
        let (public, other) = (keys[1 - end].public(), 2 - end);
        run(
            "wg",
            &format!(
                "set {device} listen-port {UDP_PORT} private-key {key_file} peer {public} \
                 allowed-ips {}/128 endpoint 192.0.2.{other}:{UDP_PORT}",
                inner[1 - end]
            ),
        )?;
        std::fs::remove_file(&key_file)?;
        run("ip", &format!("-n {name} address add {}/64 dev {device} nodad", inner[end]))?;
        run("ip", &format!("-n {name} link set {device} mtu 1420 up"))?;
    }
    Ok(ends)
}

fn tempfile(text: &str) -> anyhow::Result<String> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = format!("/tmp/fabric-tun-{}", std::process::id());
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(text.as_bytes())?;
    Ok(path)
}

fn within<R: Send>(namespace: &str, work: impl FnOnce() -> anyhow::Result<R> + Send) -> anyhow::Result<R> {
    let namespace = File::open(format!("/run/netns/{namespace}"))?;
    let enter = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    };
    std::thread::scope(|scope| scope.spawn(enter).join()).map_err(|_| anyhow::anyhow!("a thread panicked"))?
}

fn measure(name: &str, ends: &Ends, seconds: u32) -> anyhow::Result<(f64, f64)> {
    let donor = fabric_addresses(PEERING, 1).donor;
    let rtt = round_trip(donor)?;
    let forth = iperf(donor, seconds, "")?;
    let back = iperf(donor, seconds, " -R")?;
    let memory: Vec<String> = ends.0.iter().map(|child| peak_memory(child.id())).collect::<anyhow::Result<_>>()?;
    println!(
        "{name:<13} {forth:.2} Gbit/s forth, {back:.2} back, round trip {rtt:.1?}, memory {} at most",
        memory.join(" and ")
    );
    Ok((forth, back))
}

fn iperf(to: Ipv6Addr, seconds: u32, more: &str) -> anyhow::Result<f64> {
    let [origin, donor] = NAMESPACES;
    let mut server = Command::new("ip")
        .args(["netns", "exec", donor, "iperf3", "-s", "-1", "-p", &PORT.to_string()])
        .stdout(Stdio::null())
        .spawn()?;
    std::thread::sleep(Duration::from_millis(500));
    let report = run("ip", &format!("netns exec {origin} iperf3 -c {to} -p {PORT} -t {seconds} -J{more}"));
    if report.is_err() {
        server.kill()?;
    }
    server.wait()?;
    let report: serde_json::Value = serde_json::from_str(&report?)?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.context("iperf3 tells no throughput")? / 1e9)
}

/// The median round trip over an open connection.
fn round_trip(to: Ipv6Addr) -> anyhow::Result<Duration> {
    let [origin, donor] = NAMESPACES;
    let listener = within(donor, || Ok(TcpListener::bind((to, PORT))?))?;
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut byte = [0];
        while stream.read(&mut byte)? > 0 {
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    let mut times = within(origin, || {
        let mut stream = TcpStream::connect((to, PORT))?;
        stream.set_nodelay(true)?;
        let mut times = Vec::with_capacity(ROUND_TRIPS);
        for _ in 0..ROUND_TRIPS {
            let start = Instant::now();
            stream.write_all(&[1])?;
            stream.read_exact(&mut [0])?;
            times.push(start.elapsed());
        }
        Ok(times)
    })?;
    echo.join().map_err(|_| anyhow::anyhow!("the echo panicked"))??;
    times.sort_unstable();
    Ok(times[ROUND_TRIPS / 2])
}

fn peak_memory(process: u32) -> anyhow::Result<String> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    Ok(line.context("the kernel does not tell the memory used")?.trim().to_owned())
}
