//! Two stacks joined by a perfect wire, on a clock of their own.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

const PORT: u16 = 6443;
const STEP: Duration = Duration::from_millis(1);

/// Each packet arrives one step after it was sent.
struct StackPair {
    donor: Netstack,
    origin: Netstack,
    to_donor: Vec<Vec<u8>>,
    to_origin: Vec<Vec<u8>>,
    now: Instant,
}

impl StackPair {
    fn new() -> Self {
        let now = Instant::now();
        let donor = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        let origin = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
        let mut donor_stack = Netstack::new(donor, origin, 1, now);
        assert!(donor_stack.listen(PORT));
        Self {
            donor: donor_stack,
            origin: Netstack::new(origin, donor, 2, now),
            to_donor: Vec::new(),
            to_origin: Vec::new(),
            now,
        }
    }

    /// Advances the time by 1 ms: packets in flight arrive, then both sides send.
    fn step(&mut self) {
        self.now += STEP;
        for packet in self.to_donor.drain(..) {
            self.donor.receive(&packet, self.now);
        }
        for packet in self.to_origin.drain(..) {
            self.origin.receive(&packet, self.now);
        }
        self.to_donor = spoken(&mut self.origin, self.now);
        self.to_origin = spoken(&mut self.donor, self.now);
    }

    fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    /// An open connection: the donor's end and the origin's.
    fn connect(&mut self) -> (Connection, Connection) {
        let origin = self.origin.connect(PORT).unwrap();
        self.steps(5);
        let mut context = Context::from_waker(Waker::noop());
        match self.donor.poll_accept(PORT, &mut context) {
            Poll::Ready(Some(donor)) => (donor, origin),
            other => panic!("not accepted: {other:?}"),
        }
    }
}

/// All packets that a stack has to send now.
fn spoken(stack: &mut Netstack, now: Instant) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    loop {
        let more = stack.transmit(now);
        while let Some(packet) = stack.next_packet() {
            packets.push(packet);
        }
        if !more {
            return packets;
        }
    }
}

#[test]
fn a_connection_that_is_full_both_ways_continues_when_one_side_reads() {
    const MORE: usize = 4 * SEND_BUFFER_BYTES;
    // Tries every offset of a window's end within its unit.
    for odd in 1..=8 {
        let mut wire = StackPair::new();
        let (donor, origin) = wire.connect();
        // Nobody reads: both windows close and both send buffers are full.
        for _ in 0..200 {
            let _ = wire.donor.socket(donor).send_slice(&[1; 4000][..4000 - odd]);
            let _ = wire.origin.socket(origin).send_slice(&[2; 4000][..4000 - odd]);
            wire.step();
        }
        // The origin reads; the donor does not, and writes more.
        let (mut received, mut block) = (0, [0; 4096]);
        for _ in 0..3000 {
            let _ = wire.donor.socket(donor).send_slice(&[1; 4000]);
            received += wire.origin.socket(origin).recv_slice(&mut block).unwrap();
            wire.step();
        }
        assert!(received > MORE, "stands still after {received} bytes with {odd}");
    }
}

#[test]
fn everything_is_released_when_both_sides_have_closed() {
    let mut wire = StackPair::new();
    let (donor, origin) = wire.connect();
    wire.origin.release(origin, wire.now);
    wire.steps(50);
    wire.donor.release(donor, wire.now);
    wire.steps(50);
    assert_eq!((wire.donor.connections(), wire.origin.connections()), (0, 0));
}

#[test]
fn a_connection_whose_opener_vanishes_is_forgotten() {
    let mut wire = StackPair::new();
    wire.origin.connect(PORT).unwrap();
    wire.origin.transmit(wire.now);
    let syn = wire.origin.next_packet().unwrap();
    wire.donor.receive(&syn, wire.now);
    assert_eq!(wire.donor.connections(), 1);
    for _ in 0..60 {
        wire.now += Duration::from_secs(1);
        wire.donor.transmit(wire.now);
        while let Some(packet) = wire.donor.next_packet() {
            wire.donor.recycle(packet);
        }
    }
    assert_eq!(wire.donor.connections(), 0);
}
