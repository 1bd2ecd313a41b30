//! Limits the handshakes that one source may start.
//!
//! A handshake costs four scalar multiplications before its sender is known. Each source address has a small budget in
//! a table of fixed size: under a flood of forged sources, sources share budgets and memory does not grow. WireGuard's
//! own cookies, which prove that a source is not forged, work in addition: each peer has boringtun's rate limiter.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Number of budgets; with more sources, some share one.
const SLOTS: usize = 1024;
/// A source may start one handshake in this time: twenty per second.
const INTERVAL: Duration = Duration::from_millis(50);
/// Handshakes in a burst: all agents of an institution may be behind one NAT.
const BURST: u32 = 64;

/// A token bucket per source, in the form of the generic cell rate algorithm:
/// each slot is the time at which its bucket is full again.
pub(super) struct HandshakeLimiter {
    hasher: RandomState,
    slots: Box<[Instant]>,
}

impl HandshakeLimiter {
    pub(super) fn new(now: Instant) -> Self {
        Self { hasher: RandomState::new(), slots: vec![now; SLOTS].into_boxed_slice() }
    }

    /// Takes one handshake from the budget of `source`; false when it is spent.
    pub(super) fn admit(&mut self, source: IpAddr, now: Instant) -> bool {
        let index = self.hasher.hash_one(network_of(source)) as usize % SLOTS;
        let full_at = self.slots[index].max(now);
        if full_at.duration_since(now) > INTERVAL * (BURST - 1) {
            return false;
        }
        self.slots[index] = full_at + INTERVAL;
        true
    }
}

/// An IPv6 subscriber has a whole /64, so each /64 has one budget.
fn network_of(source: IpAddr) -> IpAddr {
    match source {
        IpAddr::V4(_) => source,
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_admitted_and_then_the_rate() {
        let start = Instant::now();
        let mut limiter = HandshakeLimiter::new(start);
        let source: IpAddr = "192.0.2.1".parse().unwrap();
        let admitted = (0..1000).filter(|_| limiter.admit(source, start)).count();
        assert_eq!(admitted, BURST as usize);
        let later = start + Duration::from_secs(1);
        let admitted = (0..1000).filter(|_| limiter.admit(source, later)).count();
        assert_eq!(admitted, 20);
    }

    #[test]
    fn sources_in_one_ipv6_network_share_a_budget() {
        let start = Instant::now();
        let mut limiter = HandshakeLimiter::new(start);
        let admitted = (0..1000u16)
            .filter(|host| limiter.admit(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, *host).into(), start))
            .count();
        assert_eq!(admitted, BURST as usize);
    }
}
