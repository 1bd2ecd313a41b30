//! Converts NUMA and RDMA wiring, enforcement, topology and gang members.

use comity_core::Refusal;
use comity_core::demand::{Members, Numa, NvLink, Topology};
use comity_core::inventory::{Enforcement, NodeWiring, NumaAmounts, RdmaFunctions};
use comity_core::limits::{MAX_NETWORKS_PER_NODE, MAX_NUMA_NODES};
use comity_core::placement::NodePlacement;
use comity_proto::v1;

/// Wiring of one node of an offer; `Offer::check` validates amounts.
pub(super) fn node(numa: &[v1::NumaAmounts], rdma: &[v1::RdmaBandwidth], field: &str) -> Result<NodeWiring, Refusal> {
    for (name, len, most) in [("numa", numa.len(), MAX_NUMA_NODES), ("rdma", rdma.len(), MAX_NETWORKS_PER_NODE)] {
        if len > most {
            let field = format!("{field}.{name}");
            return Err(Refusal::invalid(&field, len, "are too many for one node", format!("list at most {most}")));
        }
    }
    let mut wiring = NodeWiring::default();
    for (index, has) in numa.iter().enumerate() {
        let amounts = NumaAmounts { cpu_milli: has.cpu_milli, memory_mib: has.memory_mib };
        if wiring.numa.insert(has.numa_node, amounts).is_some() {
            let field = format!("{field}.numa[{index}].numa_node");
            return Err(Refusal::invalid(&field, has.numa_node, "comes twice", "list each NUMA node once"));
        }
    }
    for (index, has) in rdma.iter().enumerate() {
        if wiring.rdma_gbits.insert(has.network.clone(), has.gbits).is_some() {
            let field = format!("{field}.rdma[{index}].network");
            return Err(Refusal::invalid(&field, &has.network, "comes twice", "list each network once"));
        }
        if has.resource.is_empty() && has.functions == 0 && has.local_functions == 0 {
            continue;
        }
        let v1::RdmaBandwidth { resource, functions: count, local_functions: local, .. } = has.clone();
        wiring.rdma_functions.insert(has.network.clone(), RdmaFunctions { resource, count, local });
    }
    Ok(wiring)
}

/// Parts of a placement that a donor enforces on a node.
pub(super) fn enforcement(enforces: Option<v1::Enforcement>) -> Enforcement {
    let v1::Enforcement { devices, numa } = enforces.unwrap_or_default();
    Enforcement { devices, numa }
}

/// Converts to the API message; absent if nothing is enforced.
pub(crate) fn enforcement_to_proto(enforces: Enforcement) -> Option<v1::Enforcement> {
    let Enforcement { devices, numa } = enforces;
    (!enforces.is_none()).then_some(v1::Enforcement { devices, numa })
}

/// Converts to the API message.
pub(super) fn numa_to_proto<'a>(numa: impl Iterator<Item = (&'a u32, &'a NumaAmounts)>) -> Vec<v1::NumaAmounts> {
    let amounts = numa.map(|(&numa_node, has)| v1::NumaAmounts {
        numa_node,
        cpu_milli: has.cpu_milli,
        memory_mib: has.memory_mib,
    });
    amounts.collect()
}

/// RDMA bandwidth of a node.
pub(super) fn rdma_of_node(wiring: &NodeWiring) -> Vec<v1::RdmaBandwidth> {
    let bandwidth = |(network, &gbits): (&String, &u32)| {
        let RdmaFunctions { resource, count, local } = wiring.rdma_functions.get(network).cloned().unwrap_or_default();
        let network = network.clone();
        v1::RdmaBandwidth { network, gbits, resource, functions: count, local_functions: local }
    };
    wiring.rdma_gbits.iter().map(bandwidth).collect()
}

/// RDMA bandwidth that a placement takes.
pub(super) fn rdma_of_part(part: &NodePlacement) -> Vec<v1::RdmaBandwidth> {
    let bandwidth = |(network, &gbits): (&String, &u32)| {
        let taken = part.rdma_functions.get(network);
        v1::RdmaBandwidth {
            network: network.clone(),
            gbits,
            resource: taken.map(|taken| taken.resource.clone()).unwrap_or_default(),
            functions: taken.map_or(0, |taken| taken.count),
            local_functions: 0,
        }
    };
    part.rdma_gbits.iter().map(bandwidth).collect()
}

/// Parses the topology of a request.
pub(super) fn topology(topology: v1::Topology) -> Result<Topology, Refusal> {
    let unknown = |field: &str, value: i32, remedy: &str| Refusal::invalid(field, value, "is not known", remedy);
    let nvlink = match v1::NvLink::try_from(topology.nvlink) {
        Ok(v1::NvLink::Unspecified) => NvLink::None,
        Ok(v1::NvLink::Preferred) => NvLink::Preferred,
        Ok(v1::NvLink::Required) => NvLink::Required,
        Err(_) => {
            let remedy = "use 0 for none, 1 for preferred or 2 for required";
            return Err(unknown("spec.topology.nvlink", topology.nvlink, remedy));
        }
    };
    let numa = match v1::Numa::try_from(topology.numa) {
        Ok(v1::Numa::Unspecified) => Numa::None,
        Ok(v1::Numa::Aligned) => Numa::Aligned,
        Err(_) => return Err(unknown("spec.topology.numa", topology.numa, "use 0 for anywhere or 1 for aligned")),
    };
    let v1::Topology { same_node, whole_node, rdma_gbits, spread_nodes, .. } = topology;
    Ok(Topology { same_node, whole_node, nvlink, numa, rdma_gbits, spread_nodes })
}

/// Converts to the API message.
pub(super) fn topology_to_proto(topology: Topology) -> v1::Topology {
    let nvlink = match topology.nvlink {
        NvLink::None => v1::NvLink::Unspecified,
        NvLink::Preferred => v1::NvLink::Preferred,
        NvLink::Required => v1::NvLink::Required,
    };
    let numa = match topology.numa {
        Numa::None => v1::Numa::Unspecified,
        Numa::Aligned => v1::Numa::Aligned,
    };
    v1::Topology {
        same_node: topology.same_node,
        whole_node: topology.whole_node,
        nvlink: nvlink.into(),
        numa: numa.into(),
        rdma_gbits: topology.rdma_gbits,
        spread_nodes: topology.spread_nodes,
    }
}

/// Members of a gang; `RequestSpec::check` validates the rest.
pub(super) fn members(members: v1::Members) -> Members {
    Members { min: members.min, desired: members.desired }
}

/// Converts to the API message.
pub(super) fn members_to_proto(members: Members) -> v1::Members {
    v1::Members { min: members.min, desired: members.desired }
}
