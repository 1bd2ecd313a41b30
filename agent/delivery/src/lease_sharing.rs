//! How the devices of a lease are shared, by the labels and annotations of its nodes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::gpu_resource::{NVIDIA_GPU, NVIDIA_GPU_SHARED};
use comity_agent_kubernetes::hami::{HamiShare, REGISTER_ANNOTATION, RegisteredDevice, registered_devices};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::placement::{NodePlacement, WHOLE_MILLI};

use crate::DonorLease;

/// Labels and annotations of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeMarks {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
}

/// How the devices of a lease are shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LeaseSharing {
    /// The count of the resource says it all.
    Counted,
    /// By MPS: the device plugin gives a container one share.
    Mps,
    /// By HAMi, which limits memory and compute of each container.
    Hami(HamiShare),
}

impl LeaseSharing {
    /// The limits of a share, if HAMi enforces them.
    pub(crate) const fn hami(&self) -> Option<&HamiShare> {
        match self {
            Self::Hami(share) => Some(share),
            Self::Counted | Self::Mps => None,
        }
    }
}

/// Reads it from the nodes of the placement, by their ids.
///
/// # Errors
/// [`DeliveryError::Permanent`] if HAMi shares only some of the nodes, or not the devices of the placement.
pub(crate) fn lease_sharing(
    lease: &DonorLease,
    nodes: &BTreeMap<String, NodeMarks>,
) -> Result<LeaseSharing, DeliveryError> {
    let resource = lease.placement.resource_name.as_str();
    if !matches!(resource, NVIDIA_GPU | NVIDIA_GPU_SHARED) {
        return Ok(LeaseSharing::Counted);
    }
    let marks: Vec<(&NodePlacement, &NodeMarks)> =
        lease.placement.nodes.iter().filter_map(|placed| Some((placed, nodes.get(&placed.node)?))).collect();
    let registers: Vec<(&NodePlacement, &String)> =
        marks.iter().filter_map(|(placed, node)| Some((*placed, node.annotations.get(REGISTER_ANNOTATION)?))).collect();
    if registers.is_empty() {
        let is_mps =
            |node: &NodeMarks| node.labels.get("nvidia.com/gpu.sharing-strategy").is_some_and(|it| it == "mps");
        let any_mps = marks.iter().any(|(_, node)| is_mps(node));
        return Ok(if any_mps { LeaseSharing::Mps } else { LeaseSharing::Counted });
    }
    if registers.len() < marks.len() {
        return Err(DeliveryError::permanent(
            "hami-devices",
            format!(
                "{}: HAMi shares {} of its {} nodes, and pods cannot be the same for both; ask with --selector \
                 \"device.sharing == 'fractional'\", or with != for the others",
                lease.lease_id,
                registers.len(),
                marks.len()
            ),
        ));
    }
    hami_share(lease, &registers).map(LeaseSharing::Hami).map_err(|reason| {
        DeliveryError::permanent("hami-devices", format!("{}: {reason}; ask for a new lease", lease.lease_id))
    })
}

/// The limits of each share, and the devices. All shares of a lease take the same part of their devices; where devices
/// differ in memory, the smallest decides.
fn hami_share(lease: &DonorLease, registers: &[(&NodePlacement, &String)]) -> Result<HamiShare, String> {
    let mut placed: Vec<(RegisteredDevice, u64)> = Vec::new();
    for (node, register) in registers {
        let registered =
            registered_devices(register).map_err(|reason| format!("annotation {REGISTER_ANNOTATION}: {reason}"))?;
        for share in &node.devices {
            let device = usize::try_from(share.device).ok().and_then(|at| registered.get(at));
            let device = device.ok_or_else(|| {
                format!("its placement names device {}, and HAMi registers {}", share.device, registered.len())
            })?;
            placed.push((device.clone(), share.milli.into()));
        }
    }
    let all = placed.iter().fold(0, |sum: u64, (_, milli)| sum.saturating_add(*milli));
    let each = all / lease.placement.resource_count.max(1);
    if each == 0 || each > u64::from(WHOLE_MILLI) || placed.iter().any(|(_, milli)| milli % each != 0) {
        return Err(format!(
            "its placement has {all} thousandths of a device for {} shares, which is no size of a share",
            lease.placement.resource_count
        ));
    }
    let memory = placed.iter().map(|(device, _)| u64::from(device.memory_mib) * each / u64::from(WHOLE_MILLI)).min();
    Ok(HamiShare {
        memory_mib: memory.unwrap_or(0),
        cores: u32::try_from(each * 100 / u64::from(WHOLE_MILLI)).unwrap_or(100),
        devices: placed.into_iter().map(|(device, _)| device.uuid).collect::<BTreeSet<String>>(),
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_model::gpu_demand::GpuDemand;
    use comity_agent_model::lease::placement::{DeviceShare, Placement};
    use comity_types::LeaseId;

    use super::*;

    const REGISTER: &str = r#"[{"id":"GPU-1","index":1,"count":20,"devmem":40000,"devcore":100,"health":true},
        {"id":"GPU-0","count":20,"devmem":81559,"devcore":100,"health":true}]"#;

    /// Shares on the devices of nodes "a", "b", …, as thousandths by index.
    fn lease(count: u64, nodes: &[&[(u32, u32)]]) -> DonorLease {
        let share = |&(device, milli): &(u32, u32)| DeviceShare { device, milli, ..DeviceShare::default() };
        let node = |(name, devices): (&str, &&[(u32, u32)])| NodePlacement {
            node: name.to_owned(),
            devices: devices.iter().map(share).collect(),
            ..NodePlacement::default()
        };
        DonorLease {
            lease_id: LeaseId(7),
            tenant: "t".into(),
            origin: "o".into(),
            target_namespace: String::new(),
            placement: Placement {
                nodes: ["a", "b"].into_iter().zip(nodes).map(node).collect(),
                resource_name: NVIDIA_GPU.into(),
                resource_count: count,
                ..Placement::new("here".parse().unwrap())
            },
            gpus: GpuDemand::default(),
            fencing_token: 1,
            ends_at_ms: 0,
        }
    }

    fn nodes(marks: &[(&str, &str, &str)]) -> BTreeMap<String, NodeMarks> {
        let one = |&(name, register, strategy): &(&str, &str, &str)| {
            let mut node = NodeMarks::default();
            if !register.is_empty() {
                node.annotations.insert(REGISTER_ANNOTATION.to_owned(), register.to_owned());
            }
            node.labels.insert("nvidia.com/gpu.sharing-strategy".to_owned(), strategy.to_owned());
            (name.to_owned(), node)
        };
        marks.iter().map(one).collect()
    }

    #[test]
    fn twentieths_have_their_part_of_memory_and_compute() {
        let hami = nodes(&[("a", REGISTER, "")]);
        let sharing = lease_sharing(&lease(4, &[&[(0, 200)]]), &hami).unwrap();
        let share = HamiShare { memory_mib: 4_077, cores: 5, devices: ["GPU-0".to_owned()].into() };
        assert_eq!(sharing, LeaseSharing::Hami(share));
        // The smaller device decides, and both are named.
        let sharing = lease_sharing(&lease(3, &[&[(0, 100), (1, 50)]]), &hami).unwrap();
        let share = sharing.hami().unwrap();
        assert_eq!((share.memory_mib, share.cores, share.devices.len()), (2_000, 5, 2));
        let whole = lease_sharing(&lease(1, &[&[(1, 1_000)]]), &hami).unwrap();
        assert_eq!((whole.hami().unwrap().memory_mib, whole.hami().unwrap().cores), (40_000, 100));
    }

    #[test]
    fn a_placement_that_hami_cannot_hold_is_refused() {
        let hami = nodes(&[("a", REGISTER, ""), ("b", "", "none")]);
        for (lease, part) in [
            (lease(1, &[&[(2, 50)]]), "device 2"),
            (lease(3, &[&[(0, 100)]]), "no size of a share"),
            (lease(1, &[&[]]), "0 thousandths"),
            (lease(2, &[&[(0, 1_000)], &[(0, 1_000)]]), "1 of its 2 nodes"),
        ] {
            let error = lease_sharing(&lease, &hami).unwrap_err();
            let DeliveryError::Permanent { code: "hami-devices", message } = &error else { panic!("{error}") };
            assert!(message.contains(part) && message.contains("lease-7"), "{message}");
        }
        let unreadable = nodes(&[("a", "nonsense", "")]);
        assert!(lease_sharing(&lease(1, &[&[(0, 50)]]), &unreadable).unwrap_err().to_string().contains("1 fields"));
    }

    #[test]
    fn mps_is_known_by_its_label() {
        let one = lease(2, &[&[(0, 200)]]);
        assert_eq!(lease_sharing(&one, &nodes(&[("a", "", "mps")])).unwrap(), LeaseSharing::Mps);
        assert_eq!(lease_sharing(&one, &nodes(&[("a", "", "time-slicing")])).unwrap(), LeaseSharing::Counted);
        let mut mig = one.clone();
        mig.placement.resource_name = "nvidia.com/mig-1g.10gb".to_owned();
        assert_eq!(lease_sharing(&mig, &nodes(&[("a", "", "mps")])).unwrap(), LeaseSharing::Counted);
    }
}
