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
    let places = Arc::new(Places::default());
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, peer)) => match Places::take(&places, peer) {
                Some(place) => drop(connections.spawn(connection(stream, app.clone(), place))),
                None => tracing::debug!(%peer, "too many connections: this one is closed"),
            },
            Err(error) => {
                tracing::warn!(%error, "the device reader cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, app: Router, place: Place) {
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
    drop(place);
}

/// Connections by address.
#[derive(Default)]
struct Places(Mutex<BTreeMap<IpAddr, usize>>);

/// One connection's place, until it is dropped.
struct Place {
    places: Arc<Places>,
    address: IpAddr,
}

impl Places {
    fn take(places: &Arc<Self>, peer: SocketAddr) -> Option<Place> {
        let address = peer.ip().to_canonical();
        let mut taken = places.lock();
        let of_address = taken.get(&address).copied().unwrap_or(0);
        if of_address >= MAX_OF_ADDRESS || taken.values().sum::<usize>() >= MAX_CONNECTIONS {
            return None;
        }
        taken.insert(address, of_address + 1);
        Some(Place { places: Arc::clone(places), address })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
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
        let places = Arc::new(Places::default());
        let held: Vec<_> = (0..MAX_OF_ADDRESS).map(|_| Places::take(&places, peer(1))).collect();
        assert!(held.iter().all(Option::is_some));
        let mapped = SocketAddr::new(IpAddr::V6(std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped()), 2);
        assert!(Places::take(&places, peer(1)).is_none() && Places::take(&places, mapped).is_none());
        assert!(Places::take(&places, peer(2)).is_some());
        drop(held);
        assert!(Places::take(&places, peer(1)).is_some());
        assert!(places.lock().is_empty(), "each place is given back");
    }

    #[test]
    fn all_addresses_together_have_a_bound() {
        let places = Arc::new(Places::default());
        let of = |last| (0..MAX_OF_ADDRESS).filter_map(|_| Places::take(&places, peer(last))).collect::<Vec<_>>();
        let held: Vec<_> = (0..u8::MAX).flat_map(of).collect();
        assert_eq!(held.len(), MAX_CONNECTIONS);
    }
}
