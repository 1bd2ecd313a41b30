//! Bounds the memory of a message before it is decoded: an empty part has two bytes on the wire and hundreds decoded.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf as _;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const WITH_LENGTH: u64 = 2;
const START_GROUP: u64 = 3;
const END_GROUP: u64 = 4;
const FIXED_32: u64 = 5;

/// A bound of a decoded message, and what its parts count towards it.
#[derive(Debug)]
pub struct DecodedSizeLimit {
    /// Estimated bytes of the decoded message, at most.
    pub max_bytes: usize,
    /// Bytes that a field with a length counts, by its depth. Deeper fields count nothing.
    pub bytes_by_depth: &'static [usize],
    /// Fields, by depth and number, that count as one part whatever is in them: others than the sender wrote it.
    pub opaque: &'static [(usize, u64)],
}

/// A message would take too much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {bytes} bytes has more parts than fit into {} MiB once it is decoded", .max_bytes >> 20)]
pub struct TooManyParts {
    /// Bytes of the message as it came.
    pub bytes: usize,
    /// The bound.
    pub max_bytes: usize,
}

impl DecodedSizeLimit {
    /// Refuses a message that would take too much memory. Malformed ones are left to the decoder.
    ///
    /// # Errors
    /// [`TooManyParts`].
    pub fn check(&self, message: &[u8]) -> Result<(), TooManyParts> {
        let mut left = Some(self.max_bytes);
        self.count(message, 0, &mut left);
        match left {
            Some(_) => Ok(()),
            None => Err(TooManyParts { bytes: message.len(), max_bytes: self.max_bytes }),
        }
    }

    /// Subtracts what the fields of `message` count; `None` once nothing is left. Texts are read as messages too: they
    /// hold next to nothing that looks like a field.
    fn count(&self, mut message: &[u8], depth: usize, left: &mut Option<usize>) {
        let Some(bytes) = self.bytes_by_depth.get(depth) else { return };
        while let Some(field) = next_field(&mut message) {
            let Some((number, within)) = field else { continue };
            *left = left.and_then(|left| left.checked_sub(*bytes));
            if left.is_none() {
                return;
            }
            if !self.opaque.contains(&(depth, number)) {
                self.count(within, depth + 1, left);
            }
        }
    }
}

/// Takes a field off the beginning: the inner value is the number of a field with a length, and what it holds. `None`
/// at the end, and where the decoder refuses the rest.
fn next_field<'m>(message: &mut &'m [u8]) -> Option<Option<(u64, &'m [u8])>> {
    let key = next_varint(message)?;
    let wire_type = key & 7;
    let length = match wire_type {
        VARINT => {
            next_varint(message)?;
            return Some(None);
        }
        // The decoder skips groups, which no message has, and goes on behind them.
        START_GROUP | END_GROUP => return Some(None),
        FIXED_64 => 8,
        FIXED_32 => 4,
        WITH_LENGTH => usize::try_from(next_varint(message)?).ok()?,
        _ => return None,
    };
    let (value, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some((wire_type == WITH_LENGTH).then_some((key >> 3, value)))
}

fn next_varint(message: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(message).ok()
}

/// The codec of protobuf, with a bound on what is received.
#[derive(Debug)]
pub struct BoundedCodec<S, R> {
    limit: &'static DecodedSizeLimit,
    messages: PhantomData<fn(S) -> R>,
}

impl<S, R> BoundedCodec<S, R> {
    /// Sends `S`, and receives `R` up to the limit.
    #[must_use]
    pub const fn new(limit: &'static DecodedSizeLimit) -> Self {
        Self { limit, messages: PhantomData }
    }
}

impl<S, R> Codec for BoundedCodec<S, R>
where
    S: Message + Send + 'static,
    R: Message + Default + Send + 'static,
{
    type Encode = S;
    type Decode = R;
    type Encoder = <ProstCodec<S, R> as Codec>::Encoder;
    type Decoder = BoundedDecoder<R>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<S, R>::default().encoder()
    }

    fn decoder(&mut self) -> BoundedDecoder<R> {
        BoundedDecoder { limit: self.limit, message: PhantomData }
    }
}

/// The decoder of [`BoundedCodec`].
#[derive(Debug)]
pub struct BoundedDecoder<R> {
    limit: &'static DecodedSizeLimit,
    message: PhantomData<fn() -> R>,
}

impl<R: Message + Default> Decoder for BoundedDecoder<R> {
    type Item = R;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<R>, Status> {
        let message = buffer.copy_to_bytes(buffer.remaining());
        self.limit.check(&message).map_err(|refused| Status::resource_exhausted(refused.to_string()))?;
        // As tonic reports it.
        R::decode(message).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;
    use crate::v1;
    use crate::v1::agent_message::Body;

    const LIMIT: DecodedSizeLimit = DecodedSizeLimit { max_bytes: 1_000, bytes_by_depth: &[1, 100], opaque: &[(0, 5)] };
    /// A group, which may be empty, of a field that no message has.
    const GROUP: [u8; 4] = [0xa3, 0x06, 0xa4, 0x06];

    fn state(leases: usize, envelope: &[u8]) -> Vec<u8> {
        let envelope = v1::Envelope { ciphertext: envelope.to_vec(), ..v1::Envelope::default() };
        let leases = vec![v1::Lease { id: "lease-1".to_owned(), ..v1::Lease::default() }; leases];
        v1::DesiredState { leases, envelopes: vec![envelope], ..v1::DesiredState::default() }.encode_to_vec()
    }

    #[test]
    fn parts_count_by_their_depth() {
        let few = state(9, b"");
        assert_eq!(LIMIT.check(&few), Ok(()));
        let many = state(10, b"");
        assert_eq!(LIMIT.check(&many), Err(TooManyParts { bytes: many.len(), max_bytes: 1_000 }));
    }

    #[test]
    fn what_others_wrote_counts_as_one_part() {
        // It reads like a hundred empty fields.
        assert_eq!(LIMIT.check(&state(9, &[0x0a, 0x00].repeat(100))), Ok(()));
    }

    #[test]
    fn sizes_of_decoded_messages() {
        const NODE_BYTES: usize = 256;
        const DEVICE_BYTES: usize = 320;
        const LIMIT: DecodedSizeLimit = DecodedSizeLimit {
            max_bytes: 64 << 10,
            bytes_by_depth: &[512, NODE_BYTES, DEVICE_BYTES, 48, 96],
            opaque: &[],
        };
        let node = v1::Node { id: "n".to_owned(), devices: vec![v1::Device::default(); 9], ..v1::Node::default() };
        let offer = v1::Offer { nodes: vec![node; 2], ..v1::Offer::default() };
        let message = v1::AgentMessage { message_id: 1, body: Some(Body::Offer(offer)), ..Default::default() };
        let message = message.encode_to_vec();
        let behind_a_group = [&GROUP[..], &message[..]].concat();
        fuzz!("decoded_size", vec![message, behind_a_group], |bytes: &[u8]| {
            let Ok(message) = v1::AgentMessage::decode(bytes) else { return false };
            if LIMIT.check(bytes).is_err() {
                return false;
            }
            if let Some(Body::Offer(offer)) = message.body {
                let devices: usize = offer.nodes.iter().map(|node| node.devices.len()).sum();
                let counted = offer.nodes.len() * NODE_BYTES + devices * DEVICE_BYTES;
                assert!(counted <= LIMIT.max_bytes, "{} nodes with {devices} devices passed", offer.nodes.len());
            }
            true
        });
    }

    #[test]
    fn parts_behind_a_group_count() {
        let within = [&GROUP[..], &[0x0a, 0x00].repeat(11)[..]].concat();
        let before = [&GROUP[..], &state(11, b"")[..]].concat();
        let nested = [&[0x1a, u8::try_from(within.len()).expect("short")][..], &within[..]].concat();
        let open = [&GROUP[..2], &[0x0a, 0x00, 0xa4, 0x06], &state(11, b"")[..]].concat();
        for message in [before, nested, open] {
            assert!(LIMIT.check(&message).is_err(), "{message:?}");
            assert!(v1::DesiredState::decode(message.as_slice()).is_ok(), "the decoder skips the group: {message:?}");
        }
    }
}
