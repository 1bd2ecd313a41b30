//! Fuzzes packets of pods and of the other side in the mode `tun`.

use comity_fuzz::fuzz;
use ipnet::Ipv4Net;

use super::Translation;
use crate::peer::pod_network::PodNetwork;
use crate::tun::allowed::{destination, source};
use crate::tun::coalesce::Coalescer;
use crate::tun::packets::{Tcp, V4, V6, udp};
use crate::tun::segment::{SEGMENT_BYTES, split};
use crate::tun::vnet::{VNET_BYTES, VnetHeader};

fn network(there: &str, here: &str) -> PodNetwork {
    let parse = |text: &str| text.parse::<Ipv4Net>().expect("a network");
    PodNetwork { there: parse(there), here: parse(here) }
}

#[test]
fn packets_of_pods() {
    let translation =
        Translation::of(&[network("10.2.0.0/16", "100.70.0.0/16"), network("10.1.0.0/16", "100.71.0.0/16")]);
    let translation = translation.expect("two networks are remapped");
    let whole = [0; VNET_BYTES];
    let many = VnetHeader::tcp(false, 52, 1_000, 20);
    let payload = [7; 3_000];
    let valid = vec![
        [&whole[..], &Tcp::new(V4, b"payload").packet()].concat(),
        [&whole[..], &Tcp::new(V6, b"payload").packet()].concat(),
        [&whole[..], &udp(V4, 3, b"question")].concat(),
        [&many[..], &Tcp::new(V4, &payload).packet()].concat(),
    ];
    fuzz!("tun_packet", valid, move |bytes: &[u8]| {
        let Some((header, packet)) = bytes.split_first_chunk::<VNET_BYTES>() else { return false };
        let (mut coalescer, mut scratch) = (Coalescer::default(), [0; SEGMENT_BYTES]);
        // What boringtun passes on: as long as the packet's own header says, which may be less than a header.
        let length = |at: usize, more: usize| {
            packet.get(at..at + 2).map(|it| usize::from(it[0]) << 8 | usize::from(it[1])).map(|it| it + more)
        };
        let claimed = match packet.first().map(|first| first >> 4) {
            Some(4) if packet.len() >= 20 => length(2, 0),
            Some(6) if packet.len() >= 40 => length(4, 40),
            _ => None,
        };
        if let Some(incoming) = claimed.and_then(|length| packet.get(..length)) {
            let mut incoming = incoming.to_vec();
            let known = source(&incoming);
            translation.enter(&mut incoming);
            if known.is_some() {
                coalescer.push(&incoming);
                coalescer.push(&incoming);
                coalescer.drain(|_| {});
            }
        }
        let Some(header) = VnetHeader::read(header) else { return false };
        let mut outgoing = packet.to_vec();
        let _ = destination(&outgoing);
        translation.leave(header, &mut outgoing);
        split(header, &mut outgoing, &mut scratch, |segment| assert!(segment.len() <= SEGMENT_BYTES.max(packet.len())))
            .is_ok()
    });
}
