//! The loop that empties the UDP socket.

use std::sync::Arc;
use std::time::Instant;

use super::demux::Message;
use super::limiter::HandshakeLimiter;
use super::peer::Peer;
use super::registry::SharedRegistry;
use super::tunnel::DATAGRAM_BYTES;
use super::wire::UdpWire;

/// Datagrams that are opened before the tunnels send their answers: enough to share the cost, few enough for a low
/// latency.
const BATCH: usize = 64;

/// Receives until the task is aborted or the socket is gone.
pub(super) async fn receive(wire: Arc<UdpWire>, registry: SharedRegistry) {
    let mut buffer = vec![0; DATAGRAM_BYTES].into_boxed_slice();
    let mut touched: Vec<Arc<Peer>> = Vec::with_capacity(BATCH);
    let mut limiter = HandshakeLimiter::new(Instant::now());
    loop {
        if let Err(error) = wire.readable().await {
            tracing::error!(%error, "the fabric's udp socket failed");
            return;
        }
        for _ in 0..BATCH {
            match wire.try_receive(&mut buffer) {
                Ok((length, from)) => {
                    let datagram = &buffer[..length];
                    let Some((message, peer)) = registry.route(datagram) else {
                        continue;
                    };
                    let handshake = matches!(message, Message::Initiation | Message::Response);
                    if handshake && !limiter.admit(from.ip(), Instant::now()) {
                        continue;
                    }
                    if peer.receive(message, datagram, from, &*wire)
                        && !touched.iter().any(|known| Arc::ptr_eq(known, &peer))
                    {
                        touched.push(peer);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                // The kernel reports refusals of datagrams sent earlier here.
                Err(error) => tracing::trace!(%error, "a datagram could not be received"),
            }
        }
        for peer in touched.drain(..) {
            peer.respond(&*wire);
        }
        // `readable` does not yield while there is more; others must run too.
        tokio::task::consume_budget().await;
    }
}
