//! A bounded number of short connections. Those beyond it are closed at once.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Most concurrent connections.
const MAX_CONNECTIONS: usize = 64;
/// Most of one address: an agent's replica and the kubelet's probes have one each, so one pod cannot keep them out.
const MAX_OF_ADDRESS: usize = 4;
/// Longest life of a connection: a review, a reading and the page.
const CONNECTION_AGE: Duration = Duration::from_secs(20);
/// How long the request may take to come.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes of a request, with its token.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Pause after `accept` fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until it is dropped.
pub(super) async fn serve(listener: TcpListener, app: Router) {
    let slots = Arc::new(ConnectionSlots::default());
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, peer)) => match ConnectionSlots::take(&slots, peer) {
                Some(slot) => drop(connections.spawn(connection(stream, app.clone(), slot))),
                None => tracing::debug!(%peer, "too many connections: this one is closed"),
            },
            Err(error) => {
                tracing::warn!(%error, "the device reader cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, app: Router, slot: ConnectionSlot) {
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_REQUEST_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    match tokio::time::timeout(CONNECTION_AGE, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended badly"),
        Err(_) => tracing::debug!("a connection took too long"),
    }
    drop(slot);
}

/// Connections by address.
#[derive(Default)]
struct ConnectionSlots(Mutex<BTreeMap<IpAddr, usize>>);

/// One connection's slot, until it is dropped.
struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    address: IpAddr,
}

impl ConnectionSlots {
    fn take(slots: &Arc<Self>, peer: SocketAddr) -> Option<ConnectionSlot> {
        let address = peer.ip().to_canonical();
        let mut taken = slots.lock();
        let of_address = taken.get(&address).copied().unwrap_or(0);
        if of_address >= MAX_OF_ADDRESS || taken.values().sum::<usize>() >= MAX_CONNECTIONS {
            return None;
        }
        taken.insert(address, of_address + 1);
        Some(ConnectionSlot { slots: Arc::clone(slots), address })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        match taken.get_mut(&self.address) {
            Some(of_address) if *of_address > 1 => *of_address -= 1,
            _ => drop(taken.remove(&self.address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 1).into()
    }

    #[test]
    fn one_address_cannot_keep_out_another_and_places_come_back() {
        let slots = Arc::new(ConnectionSlots::default());
        let held: Vec<_> = (0..MAX_OF_ADDRESS).map(|_| ConnectionSlots::take(&slots, peer(1))).collect();
        assert!(held.iter().all(Option::is_some));
        let mapped = SocketAddr::new(IpAddr::V6(std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped()), 2);
        assert!(ConnectionSlots::take(&slots, peer(1)).is_none() && ConnectionSlots::take(&slots, mapped).is_none());
        assert!(ConnectionSlots::take(&slots, peer(2)).is_some());
        drop(held);
        assert!(ConnectionSlots::take(&slots, peer(1)).is_some());
        assert!(slots.lock().is_empty(), "each slot is given back");
    }

    #[test]
    fn all_addresses_together_have_a_bound() {
        let slots = Arc::new(ConnectionSlots::default());
        let of =
            |last| (0..MAX_OF_ADDRESS).filter_map(|_| ConnectionSlots::take(&slots, peer(last))).collect::<Vec<_>>();
        let held: Vec<_> = (0..u8::MAX).flat_map(of).collect();
        assert_eq!(held.len(), MAX_CONNECTIONS);
    }
}
