//! Quota and limits of a lease's namespace. Pure.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::dynamic_resources::GpuClass;
use comity_agent_kubernetes::hami::{CORES_RESOURCE, MEMORY_RESOURCE};
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem, LimitRangeSpec, ResourceQuota, ResourceQuotaSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;

use crate::DonorLease;
use crate::lease_nodes::{is_counted_by_node, lease_gpus, lease_resource};
use crate::lease_sharing::LeaseSharing;

/// Name of the quota; the origin reads it to check that the lease is usable.
pub(crate) const QUOTA_NAME: &str = "gpus";
const LIMITS_NAME: &str = "defaults";
/// Most resource names in one quota: far more than any cluster has.
const MAX_NAMES: usize = 512;
/// Smallest container: a limit of zero would mean no limit.
const MIN_CPU_MILLI: u64 = 10;
const MIN_MEMORY_MIB: u64 = 4;
/// Node disk in GiB for each share, and once more for the lease.
const DISK_GIB: u64 = 16;
const CONTAINER_DISK_GIB: u64 = 8;

type Quantities = BTreeMap<String, Quantity>;

/// The ResourceQuota: GPUs and virtual functions exactly as leased, every other device at zero, CPU and memory as
/// leased, no external Services, and a bounded number of objects. `devices` are all device names known on this cluster.
/// HAMi counts memory and compute of a share beside the share itself.
///
/// # Errors
/// [`DeliveryError::Permanent`] for a placement that leases nothing, or for more device names than a quota may hold.
pub(crate) fn resource_quota(
    lease: &DonorLease,
    sharing: &LeaseSharing,
    devices: &BTreeSet<String>,
    metadata: impl Fn(&str) -> ObjectMeta,
) -> Result<ResourceQuota, DeliveryError> {
    let placement = &lease.placement;
    if placement.resource_name.is_empty() || placement.resource_count == 0 {
        return Err(DeliveryError::permanent(
            "empty-placement",
            format!("{}: its placement names no resource to lend", lease.lease_id),
        ));
    }
    if devices.len() > MAX_NAMES {
        return Err(DeliveryError::permanent(
            "too-many-devices",
            format!("the cluster counts {} kinds of devices, a quota holds {MAX_NAMES}", devices.len()),
        ));
    }
    let mut hard: Quantities = devices.iter().map(|name| (format!("requests.{name}"), number(0))).collect();
    for (resource, count) in lease.functions() {
        hard.insert(format!("requests.{resource}"), number(count));
    }
    // GPUs are inserted last, so that no function of the same name replaces their count.
    let claims = match GpuClass::of_quota_name(&placement.resource_name) {
        Some(leased) => {
            hard.extend(GpuClass::ALL.map(|class| (class.quota_name(), number(0))));
            hard.insert(leased.quota_name(), number(placement.resource_count));
            placement.resource_count
        }
        None => {
            // A quota has no separate limit for extended resources: their limit is their request.
            hard.insert(format!("requests.{}", placement.resource_name), number(placement.resource_count));
            0
        }
    };
    if is_counted_by_node(lease) {
        hard.insert(format!("requests.{}", lease_gpus(lease.lease_id)), number(placement.resource_count));
    }
    if let Some(share) = sharing.hami() {
        for (name, each) in [(MEMORY_RESOURCE, share.memory_mib), (CORES_RESOURCE, share.cores.into())] {
            hard.insert(format!("requests.{name}"), number(each.saturating_mul(placement.resource_count)));
        }
    }
    let shares = shares(lease);
    for (name, amount) in [
        ("cpu", milli(lease.cpu_milli())),
        ("memory", mib(lease.memory_mib())),
        ("ephemeral-storage", gib(DISK_GIB.saturating_mul(shares.saturating_add(1)))),
    ] {
        hard.insert(format!("requests.{name}"), amount.clone());
        hard.insert(format!("limits.{name}"), amount);
    }
    for (name, most) in [
        ("pods", shares.saturating_mul(2).saturating_add(8)),
        ("count/pods", shares.saturating_mul(4).saturating_add(64)),
        ("services", 16),
        ("services.loadbalancers", 0),
        ("services.nodeports", 0),
        ("persistentvolumeclaims", 4),
        ("configmaps", 64),
        ("secrets", 64),
        ("count/jobs.batch", 64),
        ("count/deployments.apps", 16),
        ("count/replicasets.apps", 256),
        ("replicationcontrollers", 0),
        ("count/resourceclaims.resource.k8s.io", claims),
        ("count/resourceclaimtemplates.resource.k8s.io", 0),
    ] {
        hard.insert(name.to_owned(), number(most));
    }
    hard.insert("requests.storage".to_owned(), gib(100));
    Ok(ResourceQuota {
        metadata: metadata(QUOTA_NAME),
        spec: Some(ResourceQuotaSpec { hard: Some(hard), ..ResourceQuotaSpec::default() }),
        status: None,
    })
}

/// The extended resources that pods of a lease may request. Claimed devices are none.
pub(crate) fn lent_resources(lease: &DonorLease, sharing: &LeaseSharing) -> BTreeSet<String> {
    let leased = &lease.placement.resource_name;
    let counted = GpuClass::of_quota_name(leased).is_none().then(|| leased.clone());
    let of_hami = sharing.hami().map(|_| [MEMORY_RESOURCE, CORES_RESOURCE].map(str::to_owned));
    let functions = lease.functions().into_keys().map(str::to_owned);
    counted.into_iter().chain(of_hami.into_iter().flatten()).chain(functions).collect()
}

/// The LimitRange: a container without requests gets half of one share, so that a pod with a sidecar fits; a minimum
/// prevents a limit of zero, which would mean no limit. Each container has exactly one unit of the lease's own
/// resource, which only the lease's nodes have, and at most one share of MPS: the kubelet would refuse the pod after it
/// is bound.
pub(crate) fn limit_range(
    lease: &DonorLease,
    sharing: &LeaseSharing,
    metadata: impl Fn(&str) -> ObjectMeta,
) -> LimitRange {
    let half_share = |all: u64, least: u64| (all / shares(lease) / 2).max(least);
    let resource = lease_resource(lease.lease_id);
    let mut usual: Quantities = [
        ("cpu".to_owned(), milli(half_share(lease.cpu_milli(), MIN_CPU_MILLI))),
        ("memory".to_owned(), mib(half_share(lease.memory_mib(), MIN_MEMORY_MIB))),
        (resource.clone(), number(1)),
    ]
    .into();
    let mut most = Quantities::from([(resource.clone(), number(1))]);
    if *sharing == LeaseSharing::Mps {
        // A maximum without a default would be the default.
        usual.insert(lease.placement.resource_name.clone(), number(0));
        most.insert(lease.placement.resource_name.clone(), number(1));
    }
    let with_disk = |amount: Quantity| {
        let mut amounts = usual.clone();
        amounts.insert("ephemeral-storage".to_owned(), amount);
        amounts
    };
    let least =
        [("cpu".to_owned(), milli(MIN_CPU_MILLI)), ("memory".to_owned(), mib(MIN_MEMORY_MIB)), (resource, number(1))];
    let item = LimitRangeItem {
        type_: "Container".to_owned(),
        default: Some(with_disk(gib(CONTAINER_DISK_GIB))),
        default_request: Some(with_disk(mib(64))),
        min: Some(least.into()),
        max: Some(most),
        ..LimitRangeItem::default()
    };
    LimitRange { metadata: metadata(LIMITS_NAME), spec: Some(LimitRangeSpec { limits: vec![item] }) }
}

/// Number of shares; at least 1, because it is a divisor.
fn shares(lease: &DonorLease) -> u64 {
    u64::from(lease.gpus.count.max(1))
}

fn number(amount: u64) -> Quantity {
    Quantity(amount.to_string())
}

fn milli(amount: u64) -> Quantity {
    Quantity(format!("{amount}m"))
}

fn mib(amount: u64) -> Quantity {
    Quantity(format!("{amount}Mi"))
}

fn gib(amount: u64) -> Quantity {
    Quantity(format!("{amount}Gi"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_kubernetes::gpu_resource::all_known;
    use comity_agent_kubernetes::hami::HamiShare;
    use comity_agent_model::gpu_demand::GpuDemand;
    use comity_agent_model::lease::placement::{NodePlacement, Placement, VirtualFunctions};
    use comity_types::LeaseId;

    use super::*;

    fn lease(resource: &str, count: u64, cpu_milli: u64) -> DonorLease {
        DonorLease {
            lease_id: LeaseId(7),
            tenant: "vision".into(),
            origin: "polytechnic".into(),
            target_namespace: String::new(),
            placement: Placement {
                resource_name: resource.into(),
                resource_count: count,
                nodes: vec![
                    NodePlacement { cpu_milli, memory_mib: 1_024, ..Default::default() },
                    NodePlacement { cpu_milli, memory_mib: 2_048, ..Default::default() },
                ],
                ..Placement::new("here".parse().unwrap())
            },
            gpus: GpuDemand { count: u32::try_from(count).unwrap(), ..Default::default() },
            fencing_token: 1,
            ends_at_ms: 0,
        }
    }

    fn named(name: &str) -> ObjectMeta {
        ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
    }

    fn hard(lease: &DonorLease, on_nodes: &[&str]) -> BTreeMap<String, String> {
        let quota = resource_quota(lease, &LeaseSharing::Counted, &all_known(on_nodes.iter().copied()), named).unwrap();
        quota.spec.unwrap().hard.unwrap().into_iter().map(|(name, Quantity(amount))| (name, amount)).collect()
    }

    #[test]
    fn only_what_was_leased_is_above_zero() {
        let hard = hard(&lease("nvidia.com/gpu", 3, 6_000), &["nvidia.com/gpu", "rdma/hca", "amd.com/cpx_nps4", "cpu"]);
        let devices: Vec<_> = hard
            .iter()
            .filter(|(name, amount)| name.contains('/') && name.starts_with("requests.") && *amount != "0")
            .map(|(name, amount)| (name.as_str(), amount.as_str()))
            .collect();
        let expected = [("requests.gpus.lease.comity.dev/lease-7", "3"), ("requests.nvidia.com/gpu", "3")];
        assert_eq!(devices, expected, "the lease has two nodes");
        for other in [
            "requests.rdma/hca",
            "requests.amd.com/cpx_nps4",
            "requests.nvidia.com/mig-1g.10gb",
            "requests.nvidia.com/gpu.shared",
        ] {
            assert_eq!(hard[other], "0", "{other}");
        }
        assert_eq!(
            (hard["requests.cpu"].as_str(), hard["limits.cpu"].as_str(), hard["limits.memory"].as_str()),
            ("12000m", "12000m", "3072Mi")
        );
        assert_eq!((hard["services.loadbalancers"].as_str(), hard["services.nodeports"].as_str()), ("0", "0"));
        assert!(!hard.contains_key("limits.nvidia.com/gpu"));
    }

    #[test]
    fn functions_of_all_nodes_are_allowed_and_no_more() {
        let mut lease = lease("nvidia.com/gpu", 4, 0);
        for (node, count) in lease.placement.nodes.iter_mut().zip([3, 2]) {
            node.functions = vec![VirtualFunctions { resource: "nvidia.com/ib_vf".to_owned(), count }];
        }
        let on_nodes = ["nvidia.com/gpu", "nvidia.com/ib_vf", "rdma/hca"];
        assert_eq!(hard(&lease, &on_nodes)["requests.nvidia.com/ib_vf"], "5");
        assert_eq!(hard(&lease, &on_nodes)["requests.rdma/hca"], "0");
        // A function with the name of the GPU resource does not raise the number of GPUs.
        lease.placement.nodes[0].functions[0].resource = "nvidia.com/gpu".to_owned();
        assert_eq!(hard(&lease, &on_nodes)["requests.nvidia.com/gpu"], "4");
    }

    #[test]
    fn a_leased_profile_is_not_excluded_with_the_others() {
        let hard = hard(&lease("nvidia.com/mig-1g.10gb", 2, 0), &["nvidia.com/gpu"]);
        assert_eq!(
            (hard["requests.nvidia.com/mig-1g.10gb"].as_str(), hard["requests.nvidia.com/gpu"].as_str()),
            ("2", "0")
        );
        // The lease has no CPU: the minimum applies.
        assert_eq!(hard["requests.cpu"], "100m");
    }

    #[test]
    fn claimed_devices_are_counted_by_their_class() {
        let class = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices";
        let claimed = hard(&lease(class, 2, 0), &["nvidia.com/gpu"]);
        assert_eq!((claimed[class].as_str(), claimed["requests.nvidia.com/gpu"].as_str()), ("2", "0"));
        assert_eq!(claimed["mig.nvidia.com.deviceclass.resource.k8s.io/devices"], "0");
        assert_eq!(claimed["count/resourceclaims.resource.k8s.io"], "2");
        assert_eq!(claimed["count/resourceclaimtemplates.resource.k8s.io"], "0");
        let counted = hard(&lease("nvidia.com/gpu", 2, 0), &["nvidia.com/gpu"]);
        assert_eq!(counted["count/resourceclaims.resource.k8s.io"], "0");
        // API servers without such claims would never count it.
        assert!(!counted.contains_key(class));
    }

    #[test]
    fn defaults_fit_twice_into_a_share() {
        let limits = limit_range(&lease("nvidia.com/gpu", 3, 6_000), &LeaseSharing::Counted, named)
            .spec
            .unwrap()
            .limits
            .remove(0);
        for amounts in [&limits.default, &limits.default_request, &limits.min, &limits.max] {
            assert_eq!(amounts.as_ref().unwrap()["lease.comity.dev/lease-7"], number(1));
        }
        assert_eq!(limits.default_request.unwrap()["cpu"], milli(2_000));
        assert_eq!(limits.default.unwrap()["memory"], mib(512));
    }

    #[test]
    fn shares_of_hami_count_memory_and_compute() {
        let share = HamiShare { memory_mib: 4_077, cores: 5, devices: ["GPU-0".to_owned()].into() };
        let sharing = LeaseSharing::Hami(share);
        let lease = lease("nvidia.com/gpu", 4, 0);
        let quota = resource_quota(&lease, &sharing, &all_known(["nvidia.com/gpu"]), named).unwrap();
        let hard = quota.spec.unwrap().hard.unwrap();
        assert_eq!(hard["requests.nvidia.com/gpu"], number(4));
        assert_eq!(hard["requests.nvidia.com/gpumem"], number(4 * 4_077));
        assert_eq!(hard["requests.nvidia.com/gpucores"], number(20));
        assert_eq!(hard["requests.nvidia.com/gpumem-percentage"], number(0));
    }

    #[test]
    fn a_container_gets_one_share_of_mps_and_by_default_none() {
        let lease = lease("nvidia.com/gpu.shared", 4, 0);
        let limits = limit_range(&lease, &LeaseSharing::Mps, named).spec.unwrap().limits.remove(0);
        assert_eq!(limits.max.unwrap()["nvidia.com/gpu.shared"], number(1));
        assert_eq!(limits.default.unwrap()["nvidia.com/gpu.shared"], number(0));
        assert_eq!(limits.default_request.unwrap()["nvidia.com/gpu.shared"], number(0));
        assert!(!limits.min.unwrap().contains_key("nvidia.com/gpu.shared"));
    }

    #[test]
    fn devices_of_a_lease_are_its_gpus_its_functions_and_the_parts_of_hami() {
        let lent = |lease: &DonorLease, sharing: &LeaseSharing| lent_resources(lease, sharing).into_iter().collect();
        let mut counted = lease("nvidia.com/gpu", 4, 0);
        counted.placement.nodes[0].functions =
            vec![VirtualFunctions { resource: "nvidia.com/ib_vf".to_owned(), count: 1 }];
        let names: Vec<String> = lent(&counted, &LeaseSharing::Counted);
        assert_eq!(names, ["nvidia.com/gpu", "nvidia.com/ib_vf"]);
        let claimed: Vec<String> =
            lent(&lease("gpu.nvidia.com.deviceclass.resource.k8s.io/devices", 2, 0), &LeaseSharing::Counted);
        assert!(claimed.is_empty(), "{claimed:?}");
        let share = HamiShare { memory_mib: 4_077, cores: 5, devices: ["GPU-0".to_owned()].into() };
        let parts: Vec<String> = lent(&lease("nvidia.com/gpu", 4, 0), &LeaseSharing::Hami(share));
        assert_eq!(parts, ["nvidia.com/gpu", "nvidia.com/gpucores", "nvidia.com/gpumem"]);
    }

    #[test]
    fn a_placement_of_nothing_is_refused() {
        for lease in [lease("nvidia.com/gpu", 0, 1), lease("", 1, 1)] {
            let error = resource_quota(&lease, &LeaseSharing::Counted, &BTreeSet::new(), named).unwrap_err();
            assert!(matches!(error, DeliveryError::Permanent { code: "empty-placement", .. }));
        }
    }
}
