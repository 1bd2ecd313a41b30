//! Placements.

use comity_proto::v1;
use serde::Serialize;

/// Where a request fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Donor.
    pub donor: String,
    /// Nodes.
    pub nodes: Vec<NodePlacement>,
    /// Generation of the offer it was made from.
    pub offer_generation: u64,
    /// Kubernetes resource name.
    pub resource_name: String,
    /// How many of that resource.
    pub resource_count: u64,
}

/// The part on one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePlacement {
    /// Node.
    pub node: String,
    /// Devices.
    pub devices: Vec<DeviceShare>,
    /// CPU taken.
    pub cpu_milli: u64,
    /// Memory taken.
    pub memory_mib: u64,
}

/// The part of one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceShare {
    /// Device.
    pub device: u32,
    /// Thousandths taken.
    pub milli: u32,
    /// Shares of the request.
    pub units: u32,
}

impl From<v1::Placement> for Placement {
    fn from(placement: v1::Placement) -> Self {
        let device =
            |share: v1::DeviceShare| DeviceShare { device: share.device, milli: share.milli, units: share.units };
        let node = |node: v1::NodePlacement| NodePlacement {
            node: node.node,
            devices: node.devices.into_iter().map(device).collect(),
            cpu_milli: node.cpu_milli,
            memory_mib: node.memory_mib,
        };
        Self {
            donor: placement.donor,
            nodes: placement.nodes.into_iter().map(node).collect(),
            offer_generation: placement.offer_generation,
            resource_name: placement.resource_name,
            resource_count: placement.resource_count,
        }
    }
}

impl Placement {
    /// For people: `3 nvidia.com/gpu on ncc-main: 41f0…c2 (0, 1, 2)`.
    pub(crate) fn summary(&self) -> String {
        let node = |node: &NodePlacement| {
            let devices: Vec<_> = node.devices.iter().map(|share| share.device.to_string()).collect();
            format!("{} ({})", node.node, devices.join(", "))
        };
        let nodes: Vec<_> = self.nodes.iter().map(node).collect();
        format!("{} {} on {}: {}", self.resource_count, self.resource_name, self.donor, nodes.join(", "))
    }
}
