#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::IpAddr;

use super::super::packets::{self, Ends, Tcp};
use super::*;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 2);
const THERE: Ipv4Addr = Ipv4Addr::new(10, 244, 3, 4);
const HERE: Ipv4Addr = Ipv4Addr::new(100, 70, 3, 4);

fn translation() -> Translation {
    let there = "10.244.0.0/16".parse().unwrap();
    let unchanged = PodNetwork::unchanged("10.9.0.0/16".parse().unwrap());
    Translation::of(&[unchanged, PodNetwork { there, here: "100.70.0.0/16".parse().unwrap() }]).unwrap()
}

fn ends(from: Ipv4Addr, to: Ipv4Addr) -> Ends {
    (IpAddr::V4(from), IpAddr::V4(to))
}

const COMPLETE: VnetHeader = VnetHeader { offload: Offload::Whole, segment: 0, checksum: None };

#[test]
fn packets_become_those_that_the_other_address_would_have_had() {
    for payload in [&b"some data"[..], &[0xff; 301], &[]] {
        let tcp = |ends| Tcp::new(ends, payload).packet();
        let udp = |ends| packets::udp(ends, 7, payload);
        for build in [&tcp as &dyn Fn(Ends) -> Vec<u8>, &udp] {
            let mut leaving = build(ends(OWN, HERE));
            translation().leave(COMPLETE, &mut leaving);
            assert_eq!(leaving, build(ends(OWN, THERE)));
            let mut entering = build(ends(THERE, OWN));
            translation().enter(&mut entering);
            assert_eq!(entering, build(ends(HERE, OWN)));
        }
    }
}

#[test]
fn a_checksum_that_the_device_completes_covers_the_new_address() {
    let partial = |to| {
        let mut packet = Tcp::new(ends(OWN, to), b"some data").packet();
        let pseudo = checksum::pseudo_header(&packet[12..20], TCP, packet.len() - 20);
        packet[36..38].copy_from_slice(&checksum::fold(pseudo));
        packet
    };
    let mut packet = partial(HERE);
    translation().leave(VnetHeader { checksum: Some((20, TCP_CHECKSUM)), ..COMPLETE }, &mut packet);
    assert_eq!(packet, partial(THERE));
}

#[test]
fn a_datagram_without_a_checksum_stays_without() {
    let mut packet = packets::udp(ends(THERE, OWN), 7, b"data");
    packet[26..28].fill(0);
    translation().enter(&mut packet);
    assert_eq!((&packet[12..16], &packet[26..28]), (&HERE.octets()[..], &[0, 0][..]));
}

#[test]
fn of_a_later_fragment_only_the_address_changes() {
    let mut packet = packets::udp(ends(THERE, OWN), 7, b"data");
    packet[6..8].copy_from_slice(&[0x00, 0x10]);
    let before = packet.clone();
    translation().enter(&mut packet);
    assert_eq!((&packet[12..16], &packet[20..]), (&HERE.octets()[..], &before[20..]));
}

#[test]
fn an_icmp_error_quotes_the_packet_as_its_receiver_sent_it() {
    // The other side's pod refuses a datagram that it received from 100.80.1.2, its view of this cluster's pod.
    let error = |from: Ipv4Addr, quoted: &[u8]| {
        let mut icmp = vec![3, 3, 0, 0, 0, 0, 0, 0];
        icmp.extend(quoted);
        let sum = checksum::finish(checksum::add(&icmp, 0));
        icmp[2..4].copy_from_slice(&sum);
        let mut packet = packets::udp(ends(from, OWN), 9, &icmp[8..]);
        packet[9] = ICMP;
        packet[10..12].fill(0);
        let sum = checksum::finish(checksum::add(&packet[..20], 0));
        packet[10..12].copy_from_slice(&sum);
        packet[20..].copy_from_slice(&icmp);
        packet
    };
    let mut entering = error(THERE, &packets::udp(ends(OWN, THERE), 5, b"question"));
    translation().enter(&mut entering);
    let wanted = packets::udp(ends(OWN, HERE), 5, b"question");
    // The quoted datagram keeps its own checksum, which nobody verifies.
    assert_eq!(entering[28..48], wanted[..20]);
    assert_eq!(entering[12..16], HERE.octets());
    assert_eq!(checksum::fold(checksum::add(&entering[20..], 0)), [0xff; 2]);
    assert_eq!(checksum::fold(checksum::add(&entering[..20], 0)), [0xff; 2]);
}

#[test]
fn other_packets_stay_as_they_are() {
    let strange: [Vec<u8>; 4] = [
        packets::udp(packets::V6, 1, b"data"),
        packets::udp(ends(OWN, Ipv4Addr::new(10, 9, 0, 1)), 1, b"data"),
        vec![0x4f; 24],
        vec![],
    ];
    for packet in strange {
        let mut now = packet.clone();
        translation().leave(COMPLETE, &mut now);
        translation().enter(&mut now[..packet.len().min(10)]);
        assert_eq!(now, packet);
    }
    assert!(Translation::of(&[PodNetwork::unchanged("10.9.0.0/16".parse().unwrap())]).is_none());
}
