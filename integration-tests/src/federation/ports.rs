//! Free ports for brokers and agents.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, bail};

use crate::process::place::Place;

/// The ports of a broker.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    pub(super) raft: u16,
    pub(super) client: u16,
}

impl Ports {
    /// Takes two free ports.
    pub(crate) fn free() -> Result<Self> {
        let ports = free_ports(2)?;
        Ok(Self { raft: ports[0], client: ports[1] })
    }

    /// The Raft and the client address of a broker on these ports.
    pub(crate) fn addresses(self, place: &Place) -> (String, String) {
        let at = |port: u16| format!("{}:{port}", place.address);
        (at(self.raft), at(self.client))
    }
}

/// A port free for TCP and UDP, below the range of outgoing connections.
pub fn free_port() -> Result<u16> {
    Ok(free_ports(1)?[0])
}

/// Finds ports free for TCP and UDP, below the system's range for outgoing connections (32768 on Linux), so that no
/// connection takes one while its owner is down.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    const FIRST: u32 = 10_000;
    const PORTS: u32 = 22_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    let mut ports = Vec::new();
    for _ in 0..PORTS {
        if ports.len() == count {
            return Ok(ports);
        }
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(FIRST + offset)?;
        let tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
        if tcp.is_ok() && udp.is_ok() {
            ports.push(port);
        }
    }
    bail!("no free ports between {FIRST} and {}", FIRST + PORTS)
}
