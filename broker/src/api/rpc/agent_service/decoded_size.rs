//! Bounds the memory of an agent's report before it is decoded.

use comity_core::Refusal;
use comity_core::refusal::Code;
use comity_proto::DecodedSizeLimit;

use crate::api::rpc_error::RpcError;

/// A report: an offer of 10,000 nodes with 16 devices each takes four fifths of it. By depth: the report, a node, a
/// device, its texts, what is in these.
const REPORT_LIMIT: DecodedSizeLimit =
    DecodedSizeLimit { max_bytes: 160 << 20, bytes_by_depth: &[512, 256, 320, 48, 96, 96, 96], opaque: &[] };

/// Refuses a message that would take too much memory. Malformed ones are left to the decoder.
pub(super) fn check_decoded_size(message: &[u8]) -> Result<(), RpcError> {
    REPORT_LIMIT.check(message).map_err(|refused| {
        let refusal = Refusal::new(Code::LimitReached, refused.to_string(), "offer fewer nodes and devices");
        refusal.at("body", refused.bytes).into()
    })
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
    fn agent_hides_devices_behind_a_group() {
        let devices = v1::Node { devices: vec![v1::Device::default(); 128], ..v1::Node::default() };
        // A field that no message has, which the decoder skips.
        let group = [0xa3, 0x06, 0xa4, 0x06];
        let flood = [&group[..], &offer(5_000, &devices)[..]].concat();
        assert!(check_decoded_size(&flood).unwrap_err().to_string().contains("more parts"));
        assert!(check_decoded_size(&[&group[..], &offer(1, &devices)[..]].concat()).is_ok());
    }

    #[test]
    fn what_is_no_message_is_left_to_the_decoder() {
        for malformed in [&[0x0a][..], &[0x0a, 0xff, 0xff], &[0xff; 32], b"text"] {
            check_decoded_size(malformed).unwrap();
        }
    }
}
