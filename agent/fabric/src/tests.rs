//! Two fabrics, or a fabric and an attacker, on the loopback interface.

#![expect(clippy::unwrap_used, reason = "tests")]

mod bandwidth;
mod connections;
mod fuzz;
mod handshake;
mod lifecycle;
mod trust;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comity_agent_model::api_port::API_PORT;
use comity_agent_model::forward_target::client_check::ClientCheck;
use defguard_boringtun::noise::{Tunn, TunnResult};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;

use super::netstack::MAX_CONNECTIONS;
use super::netstack::inner_packet::tests::syn;
use super::*;

const SOON: Duration = Duration::from_secs(5);
/// Longer than several attempts take.
const NEVER: Duration = Duration::from_secs(3);

async fn fabric() -> Fabric {
    Fabric::bind(listening(loopback(0))).await.unwrap()
}

fn listening(listen: SocketAddr) -> FabricConfig {
    FabricConfig { listen, ..FabricConfig::default() }
}

/// Admits nobody but this host.
struct Nobody;

impl ClientCheck for Nobody {
    fn admits(&self, _client: IpAddr) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(std::future::ready(false))
    }
}

fn nobody() -> Arc<dyn ClientCheck> {
    Arc::new(Nobody)
}

/// A cluster that takes part.
fn member() -> watch::Receiver<bool> {
    watch::channel(false).1
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The keys of one peering, as both sides have them after the handshake of
/// the control plane.
struct Peering {
    id: String,
    donor: WireguardKey,
    origin: WireguardKey,
    preshared: PresharedKey,
}

impl Peering {
    fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            donor: WireguardKey::generate().unwrap(),
            origin: WireguardKey::generate().unwrap(),
            preshared: PresharedKey::generate().unwrap(),
        }
    }

    fn side(&self, role: Role, endpoints: &[SocketAddr]) -> PeerConfig {
        let FabricAddresses { donor, origin } = fabric_addresses(&self.id, 1);
        let (secret, remote, local_address, remote_address) = match role {
            Role::Donor => (&self.donor, &self.origin, donor, origin),
            Role::Origin => (&self.origin, &self.donor, origin, donor),
        };
        PeerConfig {
            peering: self.id.clone(),
            epoch: 1,
            local_secret: secret.clone(),
            remote_public: remote.public(),
            preshared: self.preshared.clone(),
            endpoints: endpoints.to_vec(),
            local_address,
            remote_address,
            keepalive: Duration::from_secs(25),
            role,
            remote_cluster: format!("{role:?}'s peer"),
            routes: Vec::new(),
            remote_api: None,
        }
    }

    fn donor(&self, fabric: &Fabric, origin: &Fabric) -> PeerHandle {
        fabric.add_peer(self.side(Role::Donor, &[origin.local_addr()])).unwrap()
    }

    fn origin(&self, fabric: &Fabric, donor: &Fabric) -> PeerHandle {
        fabric.add_peer(self.side(Role::Origin, &[donor.local_addr()])).unwrap()
    }
}

/// A donor and an origin with one established peering.
struct Pair {
    donor_fabric: Fabric,
    origin_fabric: Fabric,
    donor: PeerHandle,
    origin: PeerHandle,
}

async fn pair() -> Pair {
    let (donor_fabric, origin_fabric) = (fabric().await, fabric().await);
    let peering = Peering::new("pair");
    let donor = peering.donor(&donor_fabric, &origin_fabric);
    let origin = peering.origin(&origin_fabric, &donor_fabric);
    origin.wait_handshake(SOON).await.unwrap();
    donor.wait_handshake(SOON).await.unwrap();
    Pair { donor_fabric, origin_fabric, donor, origin }
}

/// Echoes every connection to its end, on a loopback port.
async fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind(loopback(0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    address
}

async fn echo_once(address: SocketAddr, message: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(message).await?;
    stream.shutdown().await?;
    let mut echo = Vec::new();
    stream.read_to_end(&mut echo).await?;
    Ok(echo)
}
