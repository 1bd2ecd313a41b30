//! Where a lease is placed.

use std::collections::BTreeMap;

use comity_proto::v1;
use comity_types::{ClusterId, InvalidId};

/// Donor, nodes and devices of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Lending cluster.
    pub donor: ClusterId,
    /// The lease's part of each node.
    pub nodes: Vec<NodePlacement>,
    /// Kubernetes resource by which the donor counts the shares, as in "nvidia.com/gpu".
    pub resource_name: String,
    /// Amount of that resource.
    pub resource_count: u64,
    /// MIG profile of each share, by its name on the donor's devices; empty for shares of another kind.
    pub mig_profile: String,
}

/// A lease's part of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePlacement {
    /// Id of the node: a salted hash of its name, as in the donor's offer.
    pub node: String,
    /// Devices, with the lease's part of each.
    pub devices: Vec<DeviceShare>,
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory in MiB.
    pub memory_mib: u64,
    /// Virtual functions of RDMA networks.
    pub functions: Vec<VirtualFunctions>,
}

/// A lease's part of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceShare {
    /// Index of the device on its node.
    pub device: u32,
    /// Thousandths of the device.
    pub milli: u32,
    /// First memory slot of each MIG instance; empty if the offer has no MIG layout.
    pub mig_starts: Vec<u8>,
}

/// Virtual functions of an RDMA network on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualFunctions {
    /// Kubernetes resource that counts them, as in "nvidia.com/ib_vf".
    pub resource: String,
    /// Number of functions.
    pub count: u32,
}

impl Placement {
    /// A placement on a donor, without nodes.
    #[must_use]
    pub fn new(donor: ClusterId) -> Self {
        Self { donor, nodes: Vec::new(), resource_name: String::new(), resource_count: 0, mig_profile: String::new() }
    }

    /// Whether the broker chose the slots of MIG instances.
    #[must_use]
    pub fn has_mig_starts(&self) -> bool {
        self.nodes.iter().flat_map(|node| &node.devices).any(|share| !share.mig_starts.is_empty())
    }

    /// Total virtual functions, by resource.
    #[must_use]
    pub fn functions(&self) -> BTreeMap<&str, u64> {
        let mut total: BTreeMap<&str, u64> = BTreeMap::new();
        for functions in self.nodes.iter().flat_map(|node| &node.functions) {
            let count = total.entry(&functions.resource).or_default();
            *count = count.saturating_add(functions.count.into());
        }
        total
    }
}

impl TryFrom<v1::Placement> for Placement {
    type Error = InvalidId;

    fn try_from(placement: v1::Placement) -> Result<Self, InvalidId> {
        Ok(Self {
            donor: ClusterId::parse(&placement.donor, "lease.placement.donor")?,
            nodes: placement.nodes.into_iter().map(NodePlacement::from).collect(),
            resource_name: placement.resource_name,
            resource_count: placement.resource_count,
            mig_profile: placement.mig_profile,
        })
    }
}

impl From<v1::NodePlacement> for NodePlacement {
    fn from(placement: v1::NodePlacement) -> Self {
        // Networks without a resource have bandwidth and no functions.
        let networks = placement.rdma.into_iter().filter(|network| !network.resource.is_empty());
        let functions =
            networks.map(|network| VirtualFunctions { resource: network.resource, count: network.functions }).collect();
        let share = |share: &v1::DeviceShare| DeviceShare {
            device: share.device,
            milli: share.milli,
            // No board has that many slots: such a start is of no instance.
            mig_starts: share.mig_starts.iter().map(|start| u8::try_from(*start).unwrap_or(u8::MAX)).collect(),
        };
        Self {
            node: placement.node,
            devices: placement.devices.iter().map(share).collect(),
            cpu_milli: placement.cpu_milli,
            memory_mib: placement.memory_mib,
            functions,
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn functions_are_added_up_and_networks_without_them_are_left_out() {
        let network = |resource: &str, functions| v1::RdmaBandwidth {
            resource: resource.to_owned(),
            functions,
            ..v1::RdmaBandwidth::default()
        };
        let node = |rdma| v1::NodePlacement { rdma, ..v1::NodePlacement::default() };
        let nodes = vec![node(vec![network("ib_vf", 3), network("", 0)]), node(vec![network("ib_vf", 2)])];
        let message = v1::Placement { donor: "north".to_owned(), nodes, ..v1::Placement::default() };
        let placement = Placement::try_from(message).unwrap();
        assert_eq!(placement.functions(), BTreeMap::from([("ib_vf", 5)]));
        assert_eq!(placement.nodes[0].functions.len(), 1);
    }

    #[test]
    fn an_error_names_the_field() {
        let error = Placement::try_from(v1::Placement::default()).unwrap_err().to_string();
        assert!(error.contains("lease.placement.donor"), "{error}");
    }
}
