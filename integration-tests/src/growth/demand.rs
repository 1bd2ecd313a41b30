//! The tenants' requests, from a quarter of a GPU to a whole node.

use comity_proto::v1;
use comity_proto::v1::share::{Kind, Whole};

use super::growth_policy;
use crate::federation::policy_documents::CLASS;

/// GPUs of ten requests, in thousandths each.
const SIZES: [u32; 10] = [250, 1_000, 1_000, 2_000, 2_000, 4_000, 4_000, 8_000, 8_000, 8_000];
/// GPUs to provide per lease: the mean request, and a reserve to choose from.
pub const GPUS_PER_LEASE: u32 = 5;

/// Request number `number`; origins and tenants take turns.
pub(super) fn spec(number: usize, origins: usize) -> v1::RequestSpec {
    let origin = number % origins;
    let size = SIZES[number / origins % SIZES.len()];
    let (kind, count) = match size {
        part @ ..1_000 => (Kind::Milli(part), 1),
        whole => (Kind::Whole(Whole {}), whole / 1_000),
    };
    v1::RequestSpec {
        tenant: growth_policy::tenant(origin, number / origins % growth_policy::TENANTS_PER_ORIGIN),
        origin: growth_policy::origin(origin),
        gpus: Some(v1::GpuDemand {
            class: CLASS.to_owned(),
            share: Some(v1::Share { kind: Some(kind) }),
            count,
            cpu_milli_per_gpu: 8_000,
            memory_mib_per_gpu: 65_536,
            ..v1::GpuDemand::default()
        }),
        topology: Some(v1::Topology { same_node: true, ..v1::Topology::default() }),
        duration_ms: 24 * 3_600 * 1_000,
        delivery: v1::Delivery::Namespace.into(),
        note: "training of a language model".to_owned(),
        ..v1::RequestSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_gpus_for_all() {
        assert!(SIZES.iter().sum::<u32>() <= SIZES.len() as u32 * GPUS_PER_LEASE * 800);
    }
}
