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

/// Thousandths of a whole device.
pub const WHOLE_MILLI: u32 = 1_000;

/// A lease's part of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceShare {
    /// Index of the device on its node.
    pub device: u32,
    /// Thousandths of the device.
    pub milli: u32,
    /// Shares of the request on the device; 1 for a whole one.
    pub units: u32,
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

    /// The lease's part of each node, in units of the counted resource. The broker sends only the total: it is divided
    /// by thousandths of devices, and no unit is lost to rounding.
    #[must_use]
    pub fn units_by_node(&self) -> Vec<(&NodePlacement, u64)> {
        let milli = |node: &NodePlacement| node.devices.iter().map(|share| u128::from(share.milli)).sum::<u128>();
        let total: u128 = self.nodes.iter().map(milli).sum();
        // Without devices, all nodes count alike.
        let weight = |node: &NodePlacement| if total == 0 { 1 } else { milli(node) };
        let whole = if total == 0 { self.nodes.len() as u128 } else { total };
        let count = u128::from(self.resource_count);
        let mut seen = 0_u128;
        let part = |node| {
            // The difference of running totals: the parts add up to the count.
            let before = count * seen / whole;
            seen += weight(node);
            (node, u64::try_from(count * seen / whole - before).unwrap_or(u64::MAX))
        };
        self.nodes.iter().map(part).collect()
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
            units: share.units,
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
    fn units_of_all_nodes_add_up_to_the_count() {
        let placement = |count, milli: &[&[u32]]| {
            let node = |devices: &&[u32]| NodePlacement {
                devices: devices
                    .iter()
                    .map(|milli| DeviceShare { device: 0, milli: *milli, ..DeviceShare::default() })
                    .collect(),
                ..NodePlacement::default()
            };
            let nodes = milli.iter().map(node).collect();
            Placement { nodes, resource_count: count, ..Placement::new("north".parse().unwrap()) }
        };
        for (count, milli, expected) in [
            (3, &[&[1_000, 1_000][..], &[1_000]][..], vec![2, 1]),
            // Time slices of a quarter.
            (5, &[&[500][..], &[750]], vec![2, 3]),
            // MIG instances, whose thousandths are rounded down.
            (8, &[&[142 * 7][..], &[142]], vec![7, 1]),
            (4, &[&[1_000][..]], vec![4]),
            (4, &[&[][..], &[]], vec![2, 2]),
        ] {
            let placement = placement(count, milli);
            let units: Vec<u64> = placement.units_by_node().into_iter().map(|(_, units)| units).collect();
            assert_eq!(units, expected, "{count} over {milli:?}");
        }
        assert!(placement(3, &[]).units_by_node().is_empty());
    }

    #[test]
    fn an_error_names_the_field() {
        let error = Placement::try_from(v1::Placement::default()).unwrap_err().to_string();
        assert!(error.contains("lease.placement.donor"), "{error}");
    }
}
