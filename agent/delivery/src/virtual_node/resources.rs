//! Resources that a virtual node is granted. Pure.

use std::collections::BTreeMap;

use comity_agent_kubernetes::dynamic_resources::GpuClass;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::placement::NodePlacement;

use crate::DonorLease;

/// Extra CPU and memory for each lease, and again for each share, for sidecars and init containers.
const HEADROOM_CPU_MILLI: u64 = 100;
const HEADROOM_MEMORY_MIB: u64 = 256;
/// Node disk in GiB, for each lease and each share.
const HEADROOM_DISK_GIB: u64 = 16;
/// Pods of a lease, and for each share.
const PODS: u64 = 8;
const PODS_PER_SHARE: u64 = 2;

/// Amounts by resource name: GPUs and virtual functions exactly as leased, CPU and memory as leased with a little room.
/// Liqo refuses pods that request any other resource.
///
/// # Errors
/// [`DeliveryError::Permanent`] for a placement that leases nothing, or devices that pods get by claims.
pub fn granted(lease: &DonorLease) -> Result<BTreeMap<String, String>, DeliveryError> {
    let placement = &lease.placement;
    if placement.resource_name.is_empty() || placement.resource_count == 0 {
        let message = format!("{}: its placement names no resource to lend", lease.lease_id);
        return Err(DeliveryError::permanent("empty-placement", message));
    }
    if GpuClass::of_quota_name(&placement.resource_name).is_some() {
        let message = format!(
            "{}: a DRA driver publishes its devices, and Liqo passes no claims to a virtual node; ask for the delivery \
             namespace",
            lease.lease_id
        );
        return Err(DeliveryError::permanent("no-virtual-node-for-claims", message));
    }
    let shares = u64::from(lease.gpus.count.max(1));
    let rooms = shares.saturating_add(1);
    let sum =
        |of: fn(&NodePlacement) -> u64| placement.nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(of(node)));
    let cpu = sum(|node| node.cpu_milli).saturating_add(HEADROOM_CPU_MILLI.saturating_mul(rooms));
    let memory = sum(|node| node.memory_mib).saturating_add(HEADROOM_MEMORY_MIB.saturating_mul(rooms));
    let functions = lease.functions().into_iter().map(|(resource, count)| (resource.to_owned(), count.to_string()));
    let mut granted: BTreeMap<String, String> = functions.collect();
    granted.extend([
        (placement.resource_name.clone(), placement.resource_count.to_string()),
        ("cpu".to_owned(), format!("{cpu}m")),
        ("memory".to_owned(), format!("{memory}Mi")),
        ("ephemeral-storage".to_owned(), format!("{}Gi", HEADROOM_DISK_GIB.saturating_mul(rooms))),
        ("pods".to_owned(), PODS.saturating_add(PODS_PER_SHARE.saturating_mul(shares)).to_string()),
    ]);
    Ok(granted)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_model::gpu_demand::GpuDemand;
    use comity_agent_model::lease::placement::{Placement, VirtualFunctions};
    use comity_types::LeaseId;

    use super::*;

    fn lease(count: u32, nodes: &[(u64, u64)]) -> DonorLease {
        let nodes = nodes.iter().map(|(cpu, memory)| NodePlacement {
            cpu_milli: *cpu,
            memory_mib: *memory,
            ..NodePlacement::default()
        });
        DonorLease {
            lease_id: LeaseId(7),
            tenant: "t".into(),
            origin: "o".into(),
            target_namespace: String::new(),
            placement: Placement {
                nodes: nodes.collect(),
                resource_name: "nvidia.com/gpu".into(),
                resource_count: count.into(),
                ..Placement::new("here".parse().unwrap())
            },
            gpus: GpuDemand { count, ..GpuDemand::default() },
            fencing_token: 1,
            ends_at_ms: 0,
        }
    }

    #[test]
    fn gpus_are_exact_and_the_rest_has_room_for_each_share() {
        let granted = granted(&lease(2, &[(4_000, 16_384), (2_000, 8_192)])).unwrap();
        let amounts: Vec<(&str, &str)> =
            granted.iter().map(|(name, amount)| (name.as_str(), amount.as_str())).collect();
        assert_eq!(
            amounts,
            [
                ("cpu", "6300m"),
                ("ephemeral-storage", "48Gi"),
                ("memory", "25344Mi"),
                ("nvidia.com/gpu", "2"),
                ("pods", "12")
            ]
        );
    }

    #[test]
    fn the_node_has_the_functions_that_were_leased() {
        let mut lease = lease(2, &[(1, 1), (1, 1)]);
        for node in &mut lease.placement.nodes {
            node.functions = vec![VirtualFunctions { resource: "nvidia.com/ib_vf".to_owned(), count: 3 }];
        }
        let granted = granted(&lease).unwrap();
        assert_eq!((granted["nvidia.com/ib_vf"].as_str(), granted["nvidia.com/gpu"].as_str()), ("6", "2"));
        assert_eq!(granted.len(), 6);
    }

    #[test]
    fn devices_of_claims_are_refused_by_name() {
        let mut lease = lease(1, &[(1, 1)]);
        lease.placement.resource_name = GpuClass::NvidiaGpu.quota_name();
        let error = granted(&lease).unwrap_err();
        assert!(matches!(error, DeliveryError::Permanent { code: "no-virtual-node-for-claims", .. }), "{error}");
    }

    #[test]
    fn a_placement_of_nothing_is_refused() {
        assert!(matches!(granted(&lease(0, &[])), Err(DeliveryError::Permanent { code: "empty-placement", .. })));
        let most = lease(u32::MAX, &[(u64::MAX, u64::MAX), (1, 1)]);
        assert_eq!(granted(&most).unwrap()["cpu"], format!("{}m", u64::MAX), "sums do not wrap");
    }
}
