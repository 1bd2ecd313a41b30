//! Bounds the memory of a report before it is decoded: an empty device has two bytes on the wire and hundreds decoded.

use comity_core::Refusal;
use comity_core::refusal::Code;

use crate::api::rpc_error::RpcError;

/// Estimated bytes of a decoded message: an offer of 10,000 nodes with 16 devices each takes four fifths of it.
const MAX_DECODED_BYTES: usize = 160 << 20;
/// Bytes that a field with a length counts, by its depth: the report, a node, a device, its texts, what is in these.
const BYTES_BY_DEPTH: [usize; 7] = [512, 256, 320, 48, 96, 96, 96];

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const WITH_LENGTH: u64 = 2;
const FIXED_32: u64 = 5;

/// Refuses a message that would take too much memory. Malformed ones are left to the decoder.
pub(super) fn check_decoded_size(message: &[u8]) -> Result<(), RpcError> {
    let mut left = Some(MAX_DECODED_BYTES);
    count(message, &BYTES_BY_DEPTH, &mut left);
    if left.is_some() {
        return Ok(());
    }
    let reason = format!(
        "a message of {} bytes has more parts than fit into {} MiB once it is decoded",
        message.len(),
        MAX_DECODED_BYTES >> 20
    );
    Err(Refusal::new(Code::LimitReached, reason, "offer fewer nodes and devices").at("body", message.len()).into())
}

/// Subtracts what the fields of `message` count; `None` once nothing is left. Texts are read as messages too: they hold
/// next to nothing that looks like a field.
fn count(mut message: &[u8], bytes_by_depth: &[usize], left: &mut Option<usize>) {
    let Some((bytes, deeper)) = bytes_by_depth.split_first() else { return };
    while let Some(field) = next_field(&mut message) {
        let Some(within) = field else { continue };
        *left = left.and_then(|left| left.checked_sub(*bytes));
        if left.is_none() {
            return;
        }
        count(within, deeper, left);
    }
}

/// Takes a field off the beginning: the inner value is what a field with a length holds. `None` at the end, and where the
/// rest is no field.
fn next_field<'m>(message: &mut &'m [u8]) -> Option<Option<&'m [u8]>> {
    let key = next_varint(message)?;
    let length = match key & 7 {
        VARINT => {
            next_varint(message)?;
            return Some(None);
        }
        FIXED_64 => 8,
        FIXED_32 => 4,
        WITH_LENGTH => usize::try_from(next_varint(message)?).ok()?,
        _ => return None,
    };
    let (value, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some((key & 7 == WITH_LENGTH).then_some(value))
}

fn next_varint(message: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(message).ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_proto::v1;
    use comity_proto::v1::agent_message::Body;
    use prost::Message as _;

    use super::*;
    use crate::api::rpc::MAX_AGENT_MESSAGE_BYTES;

    fn device() -> v1::Device {
        v1::Device {
            product_name: "NVIDIA-H100-80GB-HBM3".to_owned(),
            architecture: "Hopper".to_owned(),
            memory_mib: 81_559,
            cuda_compute_capability: "9.0".to_owned(),
            driver_version: "550.107.02".to_owned(),
            sharing: Some(v1::Sharing { mode: Some(v1::sharing::Mode::Exclusive(v1::sharing::Exclusive {})) }),
            resource_name: "nvidia.com/gpu".to_owned(),
            numa_node: Some(1),
            nvlink_clique: "0".to_owned(),
            ..v1::Device::default()
        }
    }

    fn offer(nodes: usize, node: &v1::Node) -> Vec<u8> {
        let offer = v1::Offer { nodes: vec![node.clone(); nodes], ..v1::Offer::default() };
        v1::AgentMessage { message_id: 1, body: Some(Body::Offer(offer)), ..v1::AgentMessage::default() }
            .encode_to_vec()
    }

    #[test]
    fn the_largest_offer_passes() {
        let numa = |numa_node| v1::NumaAmounts { numa_node, cpu_milli: 96_000, memory_mib: 1 << 20 };
        let node = v1::Node {
            id: "0123456789abcdef".to_owned(),
            devices: vec![device(); 16],
            numa: vec![numa(0), numa(1)],
            ..v1::Node::default()
        };
        let largest = offer(10_000, &node);
        assert!(largest.len() < MAX_AGENT_MESSAGE_BYTES, "{}", largest.len());
        check_decoded_size(&largest).unwrap();
    }

    #[test]
    fn many_empty_parts_are_refused_before_they_take_memory() {
        let devices = v1::Node { devices: vec![v1::Device::default(); 128], ..v1::Node::default() };
        for flood in [offer(5_000, &devices), offer(1_000_000, &v1::Node::default())] {
            assert!(flood.len() < 3 << 20, "{}", flood.len());
            let refusal = check_decoded_size(&flood).unwrap_err().to_string();
            assert!(refusal.contains("more parts than fit into 160 MiB"), "{refusal}");
        }
    }

    #[test]
    fn what_is_no_message_is_left_to_the_decoder() {
        for malformed in [&[0x0a][..], &[0x0a, 0xff, 0xff], &[0xff; 32], b"text"] {
            check_decoded_size(malformed).unwrap();
        }
    }
}
