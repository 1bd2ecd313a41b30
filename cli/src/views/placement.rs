//! Placements: the nodes and devices of a lease.

use comity_proto::v1;
use serde::Serialize;

use super::device::{NumaAmounts, RdmaBandwidth};

/// Nodes and devices of one donor that serve a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Donor cluster.
    pub donor: String,
    /// Part on each node.
    pub nodes: Vec<NodePlacement>,
    /// Generation of the offer that it is based on.
    pub offer_generation: u64,
    /// Kubernetes resource name.
    pub resource_name: String,
    /// Number of that resource.
    pub resource_count: u64,
    /// MIG profile of each share; empty for other kinds of share.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mig_profile: String,
}

/// Part of a placement on one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePlacement {
    /// Node id.
    pub node: String,
    /// Part of each device.
    pub devices: Vec<DeviceShare>,
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// CPU and memory by NUMA node, if the request wants alignment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<NumaAmounts>,
    /// RDMA bandwidth by network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rdma: Vec<RdmaBandwidth>,
}

/// Part of one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceShare {
    /// Index of the device on its node.
    pub device: u32,
    /// Thousandths of the device.
    pub milli: u32,
    /// Number of the request's shares on it.
    pub units: u32,
    /// First memory slot of each share's MIG instance, if the donor reports its instances.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig_starts: Vec<u32>,
}

impl From<v1::Placement> for Placement {
    fn from(placement: v1::Placement) -> Self {
        let device = |share: v1::DeviceShare| DeviceShare {
            device: share.device,
            milli: share.milli,
            units: share.units,
            mig_starts: share.mig_starts,
        };
        let node = |node: v1::NodePlacement| NodePlacement {
            node: node.node,
            devices: node.devices.into_iter().map(device).collect(),
            cpu_milli: node.cpu_milli,
            memory_mib: node.memory_mib,
            numa: node.numa.into_iter().map(NumaAmounts::from).collect(),
            rdma: node.rdma.into_iter().map(RdmaBandwidth::from).collect(),
        };
        Self {
            donor: placement.donor,
            nodes: placement.nodes.into_iter().map(node).collect(),
            offer_generation: placement.offer_generation,
            resource_name: placement.resource_name,
            resource_count: placement.resource_count,
            mig_profile: placement.mig_profile,
        }
    }
}

impl Placement {
    /// For people: `3 nvidia.com/gpu on ncc-main: 41f0…c2 (0, 1, 2)`; `0 at 4` is a MIG instance of device 0 whose
    /// first slot is 4.
    pub(crate) fn summary(&self) -> String {
        let node = |node: &NodePlacement| {
            let device = |share: &DeviceShare| {
                let starts: Vec<_> = share.mig_starts.iter().map(ToString::to_string).collect();
                if starts.is_empty() {
                    return share.device.to_string();
                }
                format!("{} at {}", share.device, starts.join("+"))
            };
            let devices: Vec<_> = node.devices.iter().map(device).collect();
            format!("{} ({})", node.node, devices.join(", "))
        };
        let nodes: Vec<_> = self.nodes.iter().map(node).collect();
        format!("{} {} on {}: {}", self.resource_count, self.resource_name, self.donor, nodes.join(", "))
    }

    /// For people: `150 Gbit/s of ib-fabric, by 3 nvidia.com/ib_vf, on each node`; empty without RDMA.
    pub(crate) fn rdma_summary(&self) -> String {
        let mut nodes_by_text: Vec<(String, Vec<&str>)> = Vec::new();
        for node in &self.nodes {
            for rdma in &node.rdma {
                let by = match rdma.functions {
                    0 => String::new(),
                    functions => format!(", by {functions} {},", rdma.resource),
                };
                let text = format!("{} Gbit/s of {}{by}", rdma.gbits, rdma.network);
                match nodes_by_text.iter_mut().find(|(known, _)| *known == text) {
                    Some((_, nodes)) => nodes.push(&node.node),
                    None => nodes_by_text.push((text, vec![&node.node])),
                }
            }
        }
        let on = |(text, nodes): &(String, Vec<&str>)| {
            if nodes.len() == self.nodes.len() {
                return format!("{text} on each node");
            }
            format!("{text} on {}", nodes.join(", "))
        };
        nodes_by_text.iter().map(on).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_shown_with_their_virtual_functions() {
        let node = |name: &str, gbits, functions| v1::NodePlacement {
            node: name.to_owned(),
            rdma: vec![v1::RdmaBandwidth {
                network: "ib".to_owned(),
                gbits,
                resource: if functions > 0 { "nvidia.com/ib_vf".to_owned() } else { String::new() },
                functions,
                local_functions: 0,
            }],
            ..v1::NodePlacement::default()
        };
        let of = |nodes| Placement::from(v1::Placement { nodes, ..v1::Placement::default() }).rdma_summary();
        let alike = vec![node("a", 150, 3), node("b", 150, 3)];
        assert_eq!(of(alike), "150 Gbit/s of ib, by 3 nvidia.com/ib_vf, on each node");
        let mixed = vec![node("a", 150, 3), node("b", 120, 0)];
        assert_eq!(of(mixed), "150 Gbit/s of ib, by 3 nvidia.com/ib_vf, on a; 120 Gbit/s of ib on b");
        assert_eq!(of(vec![v1::NodePlacement::default()]), "");
    }

    #[test]
    fn mig_instances_are_shown_with_their_first_slots() {
        let share = |device, mig_starts: &[u32]| v1::DeviceShare {
            device,
            milli: 500,
            units: 1,
            mig_starts: mig_starts.to_vec(),
        };
        let of = |devices: Vec<v1::DeviceShare>, mig_profile: &str| {
            let node = v1::NodePlacement { node: "n1".to_owned(), devices, ..v1::NodePlacement::default() };
            Placement::from(v1::Placement {
                donor: "lab".to_owned(),
                nodes: vec![node],
                resource_name: "nvidia.com/mig-3g.40gb".to_owned(),
                resource_count: 3,
                mig_profile: mig_profile.to_owned(),
                ..v1::Placement::default()
            })
        };
        let cut = of(vec![share(0, &[0, 4]), share(2, &[4])], "3g.40gb");
        assert_eq!(cut.summary(), "3 nvidia.com/mig-3g.40gb on lab: n1 (0 at 0+4, 2 at 4)");
        let json = serde_json::to_value(&cut).expect("plain data serialises");
        assert_eq!(
            (&json["migProfile"], &json["nodes"][0]["devices"][0]["migStarts"]),
            (&"3g.40gb".into(), &vec![0, 4].into())
        );
        // Other placements have no such keys.
        let json = serde_json::to_value(of(vec![share(0, &[])], "")).expect("plain data serialises");
        assert!(
            json.get("migProfile").is_none() && json["nodes"][0]["devices"][0].get("migStarts").is_none(),
            "{json}"
        );
    }
}
