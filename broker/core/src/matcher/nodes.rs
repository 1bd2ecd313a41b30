//! Which nodes of a donor a placement lies on.

use std::collections::BTreeSet;

use crate::demand::Topology;
use crate::id::NodeId;
use crate::inventory::Node;
use crate::occupancy::NodeOccupancy;

/// A node with room for the demand.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) id: &'a NodeId,
    pub(super) node: &'a Node,
    pub(super) lent: Option<&'a NodeOccupancy>,
    /// Shares it holds now, over devices, CPU and memory.
    pub(super) units: u32,
}

/// Nodes to use, and the network over which they do RDMA if that is asked for and they are several.
pub(super) struct Chosen<'a> {
    pub(super) nodes: Vec<Candidate<'a>>,
    pub(super) network: Option<&'a str>,
}

/// Gbit/s of a node on a network that are not lent.
pub(super) fn free_gbits(node: &Node, lent: Option<&NodeOccupancy>, network: &str) -> u32 {
    let lent = lent.and_then(|node| node.rdma_gbits.get(network)).copied().unwrap_or(0);
    node.wiring.rdma_gbits.get(network).map_or(0, |gbits| gbits.saturating_sub(lent))
}

/// Nodes to use: the one that is left with least, or else as few as possible; with `whole_node` only nodes used up exactly,
/// and with RDMA asked for, several only of one network. `None` if `count` shares do not fit so.
pub(super) fn choose<'a>(candidates: &[Candidate<'a>], count: u32, topology: Topology) -> Option<Chosen<'a>> {
    let fits = |candidate: &&Candidate<'_>| {
        if topology.whole_node { candidate.units == count } else { candidate.units >= count }
    };
    if let Some(best) = candidates.iter().filter(fits).min_by_key(|candidate| (candidate.units, candidate.id)) {
        return Some(Chosen { nodes: vec![*best], network: None });
    }
    if topology.same_node {
        return None;
    }
    if topology.rdma_gbits == 0 {
        let nodes = choose_several(candidates.to_vec(), count, topology)?;
        return Some(Chosen { nodes, network: None });
    }
    let on = |network: &'a str| {
        let joined = candidates
            .iter()
            .filter(|candidate| free_gbits(candidate.node, candidate.lent, network) >= topology.rdma_gbits);
        choose_several(joined.copied().collect(), count, topology).map(|nodes| Chosen { nodes, network: Some(network) })
    };
    let nodes = candidates.iter().map(|candidate| candidate.node);
    networks(nodes).into_iter().filter_map(on).min_by_key(|chosen| (chosen.nodes.len(), chosen.network))
}

fn choose_several(mut candidates: Vec<Candidate<'_>>, count: u32, topology: Topology) -> Option<Vec<Candidate<'_>>> {
    candidates.sort_by(|a, b| b.units.cmp(&a.units).then(a.id.cmp(b.id)));
    let (mut left, mut chosen) = (count, Vec::new());
    for candidate in candidates {
        if left == 0 {
            break;
        }
        if topology.whole_node && candidate.units > left {
            continue;
        }
        left -= candidate.units.min(left);
        chosen.push(candidate);
    }
    (left == 0).then_some(chosen)
}

/// Shares that fit under the topology: on one node, or together on those of one network, or on all.
pub(super) fn reach<'a>(
    rooms: impl Iterator<Item = (&'a Node, Option<&'a NodeOccupancy>, u32)>,
    topology: Topology,
) -> u64 {
    let rooms: Vec<_> = rooms.map(|(node, lent, units)| (node, lent, u64::from(units))).collect();
    let most = rooms.iter().map(|(_, _, units)| *units).max().unwrap_or(0);
    if topology.same_node {
        return most;
    }
    if topology.rdma_gbits == 0 {
        return rooms.iter().map(|(_, _, units)| units).sum();
    }
    let on = |network: &str| -> u64 {
        let joined = rooms.iter().filter(|(node, lent, _)| free_gbits(node, *lent, network) >= topology.rdma_gbits);
        joined.map(|(_, _, units)| units).sum()
    };
    networks(rooms.iter().map(|(node, _, _)| *node)).into_iter().map(on).max().unwrap_or(0).max(most)
}

fn networks<'a>(nodes: impl Iterator<Item = &'a Node>) -> BTreeSet<&'a str> {
    nodes.flat_map(|node| node.wiring.rdma_gbits.keys()).map(String::as_str).collect()
}
