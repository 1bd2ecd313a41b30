//! Measures a tunnel between two fabrics in this process, over loopback UDP.
//!
//! ```text
//! cargo run -p comity-agent --example fabric_throughput -- [MEBIBYTES] [CONNECTIONS]
//! ```
//!
//! Prints throughput in one direction, the round trip of one byte, and the peak memory of the process. Both ends, with
//! all their cryptography, share this machine's cores.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use comity_agent_fabric::{
    Fabric, FabricConfig, PeerConfig, PeerHandle, PresharedKey, Role, WireguardKey, fabric_addresses,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PORT: u16 = 6443;
const ROUND_TRIPS: u32 = 1000;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mebibytes: usize = arguments.next().map_or(Ok(512), |text| text.parse())?;
    let connections: usize = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let (_fabrics, donor, origin) = connect().await?;
    let handshake = origin.wait_handshake(Duration::from_secs(5)).await?;
    println!("handshake   {:?}", handshake.rtt.unwrap_or_default());
    println!("round trip  {:?}", round_trip(&donor, &origin).await?);
    let total = mebibytes << 20;
    let elapsed = throughput(&donor, &origin, total / connections, connections).await?;
    let gigabits = (total * 8) as f64 / elapsed.as_secs_f64() / 1e9;
    println!("throughput  {gigabits:.2} Gbit/s ({mebibytes} MiB, {connections} connections, {elapsed:.2?})");
    println!("memory      {} at most", peak_memory()?);
    Ok(())
}

async fn connect() -> anyhow::Result<([Fabric; 2], PeerHandle, PeerHandle)> {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let fabrics = [
        Fabric::bind(FabricConfig { listen, ..FabricConfig::default() }).await?,
        Fabric::bind(FabricConfig { listen, ..FabricConfig::default() }).await?,
    ];
    let (donor_key, origin_key) = (WireguardKey::generate()?, WireguardKey::generate()?);
    let preshared = PresharedKey::generate()?;
    let addresses = fabric_addresses("throughput", 1);
    let donor = PeerConfig {
        peering: "throughput".to_owned(),
        epoch: 1,
        local_secret: donor_key.clone(),
        remote_public: origin_key.public(),
        preshared,
        endpoints: vec![fabrics[1].local_addr()],
        local_address: addresses.donor,
        remote_address: addresses.origin,
        keepalive: Duration::from_secs(25),
        role: Role::Donor,
        remote_cluster: "other".to_owned(),
        routes: Vec::new(),
        remote_api: None,
    };
    let origin = PeerConfig {
        local_secret: origin_key,
        remote_public: donor_key.public(),
        endpoints: vec![fabrics[0].local_addr()],
        local_address: addresses.origin,
        remote_address: addresses.donor,
        role: Role::Origin,
        ..donor.clone()
    };
    let (donor, origin) = (fabrics[0].add_peer(donor)?, fabrics[1].add_peer(origin)?);
    Ok((fabrics, donor, origin))
}

async fn round_trip(donor: &PeerHandle, origin: &PeerHandle) -> anyhow::Result<Duration> {
    let mut listener = donor.listen(PORT)?;
    let echo = tokio::spawn(async move {
        let mut stream = listener.accept().await?;
        let mut byte = [0];
        while stream.read(&mut byte).await? > 0 {
            stream.write_all(&byte).await?;
        }
        anyhow::Ok(())
    });
    let mut stream = origin.connect(PORT).await?;
    let start = Instant::now();
    for _ in 0..ROUND_TRIPS {
        stream.write_all(&[1]).await?;
        stream.read_exact(&mut [0]).await?;
    }
    let elapsed = start.elapsed();
    stream.shutdown().await?;
    echo.await??;
    Ok(elapsed / ROUND_TRIPS)
}

async fn throughput(
    donor: &PeerHandle,
    origin: &PeerHandle,
    bytes: usize,
    connections: usize,
) -> anyhow::Result<Duration> {
    let mut listener = donor.listen(PORT)?;
    let start = Instant::now();
    let mut transfers = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let mut sender = origin.connect(PORT).await?;
        let mut receiver = listener.accept().await?;
        transfers.spawn(async move {
            let block = vec![0x5a; 128 * 1024];
            let mut left = bytes;
            while left > 0 {
                left -= sender.write(&block[..left.min(block.len())]).await?;
            }
            sender.shutdown().await?;
            anyhow::Ok(0)
        });
        transfers.spawn(async move {
            let mut block = vec![0; 128 * 1024];
            let mut received = 0;
            loop {
                match receiver.read(&mut block).await? {
                    0 => return Ok(received),
                    length => received += length,
                }
            }
        });
    }
    let mut received = 0;
    while let Some(transfer) = transfers.join_next().await {
        received += transfer??;
    }
    anyhow::ensure!(received == bytes * connections, "{received} bytes arrived");
    Ok(start.elapsed())
}

fn peak_memory() -> anyhow::Result<String> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    Ok(line.context("the kernel does not tell the memory used")?.trim().to_owned())
}
