//! The donors' offers: nodes of eight GPUs with realistic wiring and varying local use.

use comity_proto::v1;
use comity_proto::v1::sharing::{Exclusive, Fractional, Mode};

/// GPUs of a node.
pub(super) const GPUS_PER_NODE: u32 = 8;
const CPU_MILLI: u64 = 192_000;
const MEMORY_MIB: u64 = 2 << 20;
/// Every donor whose number is a multiple of this shares its GPUs, the first included, because requests for shares come
/// at any size.
const FRACTIONAL_EVERY: usize = 4;
/// Every node whose number is a multiple of this has a GPU in local use.
const LOCAL_USE_EVERY: u64 = 16;

/// A donor's offer of `nodes` nodes. Local CPU and memory depend on `generation`, so that successive offers differ in
/// every node.
pub(crate) fn offer(donor: usize, cluster: &str, nodes: usize, generation: u64) -> v1::Offer {
    v1::Offer {
        cluster: cluster.to_owned(),
        generation,
        nodes: (0..nodes).map(|number| node(donor, number, generation)).collect(),
        deliveries: vec![v1::Delivery::Namespace.into()],
        data: None,
    }
}

/// The empty offer of an origin.
pub(super) fn nothing(cluster: &str) -> v1::Offer {
    let deliveries = vec![v1::Delivery::Namespace.into()];
    v1::Offer { cluster: cluster.to_owned(), generation: 1, nodes: Vec::new(), deliveries, data: None }
}

fn node(donor: usize, number: usize, generation: u64) -> v1::Node {
    let seed = mix(mix(donor as u64) ^ number as u64);
    let local = mix(seed ^ generation);
    let numa = |numa_node| v1::NumaAmounts { numa_node, cpu_milli: CPU_MILLI / 2, memory_mib: MEMORY_MIB / 2 };
    let in_use = seed.is_multiple_of(LOCAL_USE_EVERY).then_some(u32::try_from((seed >> 32) & 7).unwrap_or(0));
    v1::Node {
        id: format!("{seed:016x}"),
        cpu_milli: CPU_MILLI,
        memory_mib: MEMORY_MIB,
        local_cpu_milli: local % 16_000,
        local_memory_mib: local % 65_536,
        devices: (0..GPUS_PER_NODE)
            .map(|index| device(donor, index, if in_use == Some(index) { 1_000 } else { 0 }))
            .collect(),
        schedulable: true,
        numa: vec![numa(0), numa(1)],
        rdma: vec![v1::RdmaBandwidth { network: "ib0".to_owned(), gbits: 400, ..v1::RdmaBandwidth::default() }],
        not_ready: false,
        enforces: None,
    }
}

fn device(donor: usize, index: u32, local_use_milli: u32) -> v1::Device {
    let mode = if donor.is_multiple_of(FRACTIONAL_EVERY) {
        Mode::Fractional(Fractional { step_milli: 50 })
    } else {
        Mode::Exclusive(Exclusive {})
    };
    v1::Device {
        index,
        product_name: "NVIDIA-H100-80GB-HBM3".to_owned(),
        architecture: "Hopper".to_owned(),
        memory_mib: 81_559,
        cuda_compute_capability: "9.0".to_owned(),
        driver_version: "550.107.02".to_owned(),
        sharing: Some(v1::Sharing { mode: Some(mode) }),
        healthy: true,
        local_use_milli,
        resource_name: "nvidia.com/gpu".to_owned(),
        numa_node: Some(index / (GPUS_PER_NODE / 2)),
        nvlink_clique: "0".to_owned(),
        fault: None,
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): neighbours become numbers without a pattern.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::offer;

    #[test]
    fn nodes_differ_and_offers_of_two_generations_differ_in_every_node() {
        let (first, second) = (offer(3, "donor-003", 100, 1), offer(3, "donor-003", 100, 2));
        let ids: BTreeSet<&str> = first.nodes.iter().map(|node| node.id.as_str()).collect();
        assert_eq!(ids.len(), 100);
        assert!(first.nodes.iter().zip(&second.nodes).all(|(one, other)| one.id == other.id && one != other));
        assert!(first.nodes.iter().any(|node| node.devices.iter().any(|device| device.local_use_milli > 0)));
    }
}
