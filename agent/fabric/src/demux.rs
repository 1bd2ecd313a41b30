//! Finds the peer that a datagram is for, before anything is decrypted.
//!
//! One UDP socket serves every peering. A handshake initiation does not name its receiver, but its first MAC is keyed
//! with the receiver's public key, and every peering has its own: testing one key takes a few hundred nanoseconds of
//! BLAKE2s (WireGuard paper, section 5.4.4). Every other message carries the receiver index that this side chose, whose
//! upper 24 bits are the peer's number.

use std::collections::BTreeMap;

use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};
use blake2::{Blake2s256, Blake2sMac, Digest};
use subtle::ConstantTimeEq;

use super::WireguardPublicKey;

const LABEL_MAC1: &[u8] = b"mac1----";
const INITIATION_BYTES: usize = 148;
/// Handshake messages, cookies and keepalives all fit in this.
pub(super) const MAX_HANDSHAKE_BYTES: usize = INITIATION_BYTES;
const RESPONSE_BYTES: usize = 92;
const COOKIE_BYTES: usize = 64;
/// The header and tag of a data message without content: a keepalive.
const MIN_DATA_BYTES: usize = 32;
/// Both MACs at the end of a handshake message.
const MACS_BYTES: usize = 32;
const MAC_BYTES: usize = 16;
/// Bits of a receiver index that boringtun uses to number sessions.
const SESSION_BITS: u32 = 8;

/// The four messages of WireGuard, by their type and exact size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Asks for a new session.
    Initiation,
    /// Grants one.
    Response,
    /// Asks the initiator to prove its address.
    Cookie,
    /// Carries a packet, or nothing (a keepalive).
    Data,
}

impl Message {
    /// Reads type and size; `None` if WireGuard has no such message.
    pub(super) fn of(datagram: &[u8]) -> Option<Self> {
        let kind = datagram.first_chunk::<4>()?;
        match (u32::from_le_bytes(*kind), datagram.len()) {
            (1, INITIATION_BYTES) => Some(Self::Initiation),
            (2, RESPONSE_BYTES) => Some(Self::Response),
            (3, COOKIE_BYTES) => Some(Self::Cookie),
            (4, MIN_DATA_BYTES..) => Some(Self::Data),
            _ => None,
        }
    }
}

/// The index that the sender of a handshake message chose for itself.
pub(super) fn sender_index(datagram: &[u8]) -> Option<u32> {
    word(datagram, 4)
}

/// The index of the receiver that a message is for.
pub(super) fn receiver_index(datagram: &[u8], message: Message) -> Option<u32> {
    match message {
        Message::Initiation => None,
        Message::Response => word(datagram, 8),
        Message::Cookie | Message::Data => word(datagram, 4),
    }
}

fn word(datagram: &[u8], at: usize) -> Option<u32> {
    let bytes = datagram.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

struct Slot<T> {
    mac1_key: [u8; 32],
    peer: T,
}

/// The table from datagrams to peers. Peer numbers have 24 bits.
pub(super) struct Demux<T> {
    slots: BTreeMap<u32, Slot<T>>,
}

impl<T> Demux<T> {
    pub(super) fn new() -> Self {
        Self { slots: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.slots.contains_key(&number)
    }

    pub(super) fn insert(&mut self, number: u32, local: WireguardPublicKey, peer: T) {
        let mac1_key = Blake2s256::new().chain_update(LABEL_MAC1).chain_update(local.to_bytes()).finalize().into();
        self.slots.insert(number, Slot { mac1_key, peer });
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        self.slots.remove(&number).map(|slot| slot.peer)
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(&number).map(|slot| &slot.peer)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.values().map(|slot| &slot.peer)
    }

    /// The message type and the peer that a datagram claims.
    pub(super) fn route(&self, datagram: &[u8]) -> Option<(Message, &T)> {
        let message = Message::of(datagram)?;
        let peer = match receiver_index(datagram, message) {
            Some(index) => self.get(index >> SESSION_BITS)?,
            None => self.addressed(datagram)?,
        };
        Some((message, peer))
    }

    fn addressed(&self, initiation: &[u8]) -> Option<&T> {
        let (message, macs) = initiation.split_at_checked(initiation.len().checked_sub(MACS_BYTES)?)?;
        let mac1 = macs.get(..MAC_BYTES)?;
        let slot = self.slots.values().find(|slot| {
            let Ok(mut mac) = Blake2sMac::<U16>::new_from_slice(&slot.mac1_key) else {
                return false;
            };
            mac.update(message);
            mac.finalize_fixed().as_slice().ct_eq(mac1).into()
        });
        slot.map(|slot| &slot.peer)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::WireguardKey;
    use super::*;
    use defguard_boringtun::noise::{Tunn, TunnResult};

    fn initiation(to: &WireguardKey) -> Vec<u8> {
        let from = WireguardKey::generate().unwrap();
        let mut tunn = Tunn::new(from.to_secret(), to.public().to_dalek(), None, None, 1, None);
        let mut buffer = [0; INITIATION_BYTES];
        match tunn.format_handshake_initiation(&mut buffer, true) {
            TunnResult::WriteToNetwork(datagram) => datagram.to_vec(),
            other => panic!("no initiation: {other:?}"),
        }
    }

    #[test]
    fn an_initiation_finds_the_peering_whose_key_it_names() {
        let keys: Vec<_> = (0..5).map(|_| WireguardKey::generate().unwrap()).collect();
        let mut demux = Demux::new();
        for (number, key) in (0..).zip(&keys) {
            demux.insert(number, key.public(), number);
        }
        for (number, key) in (0..).zip(&keys) {
            assert_eq!(demux.route(&initiation(key)), Some((Message::Initiation, &number)));
        }
        assert_eq!(demux.route(&initiation(&WireguardKey::generate().unwrap())), None);
        demux.remove(3);
        assert_eq!(demux.route(&initiation(&keys[3])), None);
    }

    #[test]
    fn a_changed_initiation_finds_nobody() {
        let key = WireguardKey::generate().unwrap();
        let mut demux = Demux::new();
        demux.insert(7, key.public(), ());
        let mut datagram = initiation(&key);
        datagram[20] ^= 1;
        assert_eq!(demux.route(&datagram), None);
    }

    #[test]
    fn data_finds_its_peer_by_the_upper_bits_of_the_index() {
        let mut demux = Demux::new();
        demux.insert(0x00ab_cdef, WireguardKey::generate().unwrap().public(), "peer");
        let mut datagram = vec![0; MIN_DATA_BYTES];
        datagram[0] = 4;
        datagram[4..8].copy_from_slice(&0xabcd_ef07_u32.to_le_bytes());
        assert_eq!(demux.route(&datagram), Some((Message::Data, &"peer")));
        datagram[7] = 0;
        assert_eq!(demux.route(&datagram), None);
    }

    #[test]
    fn other_datagrams_are_no_message() {
        for datagram in [&[][..], &[1, 0, 0], &[1, 0, 0, 0], &[5; 148], &[4, 0, 0, 0, 1], &[4, 1, 0, 0], &[2; 91]] {
            assert_eq!(Message::of(datagram), None);
        }
    }
}
