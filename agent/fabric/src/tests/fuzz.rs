//! Fuzzes what arrives at the UDP port, and what comes out of a tunnel.

use std::cell::RefCell;
use std::future::Future;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use std::{future, io};

use comity_fuzz::fuzz;
use defguard_boringtun::noise::{Tunn, TunnResult};

use crate::demux::{self, Demux, Message};
use crate::netstack::Netstack;
use crate::netstack::inner_packet::tests::syn;
use crate::path::Path;
use crate::tunnel::{Tunnel, TunnelKeys};
use crate::wire::{Sent, Wire};
use crate::{PresharedKey, WireguardKey};

const DONOR: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const ORIGIN: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const FUZZED_PORT: u16 = 6443;

/// A socket that takes everything.
struct Nowhere;

impl Wire for Nowhere {
    fn send(&self, _: SocketAddr, _: &[u8]) -> Sent {
        Sent::Done
    }

    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send {
        future::ready(Ok(()))
    }
}

#[test]
fn datagrams() {
    let key = |byte: u8| WireguardKey::from_bytes([byte; 32]);
    let (donor, origin, preshared) = (key(1), key(2), PresharedKey::from_bytes([3; 32]));
    let psk = Some(*preshared.to_bytes());
    let mut peer = Tunn::new(origin.to_secret(), donor.public().to_dalek(), psk, Some(25), 9, None);
    let mut buffer = [0; demux::MAX_HANDSHAKE_BYTES];
    let TunnResult::WriteToNetwork(initiation) = peer.format_handshake_initiation(&mut buffer, true) else {
        panic!("no initiation")
    };
    // The other messages, by type and size alone: sealed, they are refused by their tags.
    let shaped = |kind: u8, length: usize| [&[kind, 0, 0, 0][..], &[0, 1, 0, 0], &vec![0; length - 8][..]].concat();
    let valid = vec![initiation.to_vec(), shaped(2, 92), shaped(3, 64), shaped(4, 80)];
    let from: SocketAddr = "192.0.2.7:51871".parse().expect("an address");
    let mut routes = Demux::new();
    routes.insert(1, donor.public(), ());
    let fresh = move || {
        let now = Instant::now();
        let stack = Netstack::new(DONOR, ORIGIN, 1, now);
        let keys = TunnelKeys { local: &donor, remote: origin.public(), preshared: &preshared };
        let path = Path::new(vec![from], Duration::from_secs(25), now);
        Tunnel::new(&keys, 1, Duration::from_secs(25), path, Some(stack), now)
    };
    // Keys take most of the time, and a datagram that is refused changes nothing.
    let unused = RefCell::new(None);
    fuzz!("datagram", valid, move |datagram: &[u8]| {
        let _ = routes.route(datagram);
        let Some(message) = Message::of(datagram) else { return false };
        let _ = (demux::sender_index(datagram), demux::receiver_index(datagram, message));
        let (mut tunnel, now) = (unused.take().unwrap_or_else(&fresh), Instant::now());
        let is_authentic = tunnel.receive(message, datagram, from, now, &Nowhere, |stack, packet| {
            stack.as_mut().is_some_and(|stack| {
                stack.receive(packet, now);
                true
            })
        });
        if is_authentic {
            tunnel.service(now + Duration::from_secs(1), &Nowhere);
        } else {
            unused.replace(Some(tunnel));
        }
        true
    });
}

#[test]
fn packets_from_the_tunnel() {
    let mut reset = syn(ORIGIN, DONOR, FUZZED_PORT);
    reset[53] = 4;
    let mut data = syn(ORIGIN, DONOR, FUZZED_PORT);
    data[5] += 8;
    data[53] = 0x18;
    data.extend([0x55; 8]);
    fuzz!("inner_packet", vec![syn(ORIGIN, DONOR, FUZZED_PORT), reset, data], |packets: &[u8]| {
        let now = Instant::now();
        let mut stack = Netstack::new(DONOR, ORIGIN, 1, now);
        assert!(stack.listen(FUZZED_PORT));
        // A connection that is being opened, so that later packets meet one.
        stack.receive(&syn(ORIGIN, DONOR, FUZZED_PORT), now);
        for (number, packet) in packets.chunks(68).chain([packets]).enumerate() {
            let now = now + Duration::from_millis(number as u64);
            stack.receive(packet, now);
            stack.transmit(now);
            while let Some(answer) = stack.next_packet() {
                stack.recycle(answer);
            }
            stack.wake_at(now);
        }
        true
    });
}
