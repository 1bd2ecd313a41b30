//! Chooses the nodes of a donor for a placement.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use comity_types::NodeId;

use crate::feasibility::fit::bandwidth::has_bandwidth;
use crate::feasibility::fit::device::Load;
use crate::model::demand::Topology;
use crate::model::inventory::Node;
use crate::state::occupancy::NodeOccupancy;

/// A node with room for the demand.
#[derive(Clone, Copy)]
pub(crate) struct NodeRoom<'a> {
    pub(crate) id: &'a NodeId,
    pub(crate) node: &'a Node,
    pub(crate) lent: Option<&'a NodeOccupancy>,
    /// Shares that it can hold now, limited by devices, CPU and memory.
    pub(crate) units: u32,
}

/// The chosen nodes with the shares each holds. `network` is set if several nodes communicate by RDMA.
pub(crate) struct ChosenNodes<'a> {
    pub(crate) nodes: Vec<(NodeRoom<'a>, u32)>,
    pub(crate) network: Option<&'a str>,
}

/// Chooses the one node with least room left over, or else as few as possible. With `whole_node`, nodes must be filled
/// exactly; with RDMA, several nodes must share a network. With `spread_nodes`, uses as many as possible, `piece`
/// shares at a time. `None` if `count` shares do not fit that way.
pub(crate) fn choose_nodes<'a>(
    candidates: &[NodeRoom<'a>],
    count: u32,
    piece: u32,
    topology: Topology,
) -> Option<ChosenNodes<'a>> {
    let fits = |candidate: &&NodeRoom<'_>| {
        if topology.whole_node { candidate.units == count } else { candidate.units >= count }
    };
    let spreads = topology.spread_nodes && count > piece;
    let one = || candidates.iter().filter(fits).min_by_key(|candidate| (candidate.units, candidate.id));
    let on_one = || one().map(|best| ChosenNodes { nodes: vec![(*best, count)], network: None });
    if !spreads && let Some(chosen) = on_one() {
        return Some(chosen);
    }
    if topology.same_node {
        return None;
    }
    if topology.rdma_gbits == 0 {
        let nodes = choose_several_nodes(candidates.to_vec(), count, piece, topology)?;
        return Some(ChosenNodes { nodes, network: None });
    }
    let on = |network: &'a str| {
        let joined = candidates.iter().filter(|candidate| {
            has_bandwidth(candidate.node, candidate.lent, network, topology.rdma_gbits, Load::Current)
        });
        choose_several_nodes(joined.copied().collect(), count, piece, topology)
            .map(|nodes| ChosenNodes { network: (nodes.len() > 1).then_some(network), nodes })
    };
    let nodes = candidates.iter().map(|candidate| candidate.node);
    let found = networks(nodes).into_iter().filter_map(on);
    if spreads {
        return found.max_by_key(|chosen| (chosen.nodes.len(), Reverse(chosen.network))).or_else(on_one);
    }
    found.min_by_key(|chosen| (chosen.nodes.len(), chosen.network))
}

fn choose_several_nodes(
    mut candidates: Vec<NodeRoom<'_>>,
    count: u32,
    piece: u32,
    topology: Topology,
) -> Option<Vec<(NodeRoom<'_>, u32)>> {
    if topology.spread_nodes {
        return spread_over_nodes(candidates, count, piece);
    }
    candidates.sort_by(|a, b| b.units.cmp(&a.units).then(a.id.cmp(b.id)));
    let (mut left, mut chosen) = (count, Vec::new());
    for candidate in candidates {
        if left == 0 {
            break;
        }
        if topology.whole_node && candidate.units > left {
            continue;
        }
        let here = candidate.units.min(left);
        left -= here;
        chosen.push((candidate, here));
    }
    (left == 0).then_some(chosen)
}

/// Distributes `count` shares, `piece` at a time: a first round over as many nodes as needed, those with least room
/// first, then more rounds over those that still have room.
fn spread_over_nodes(mut candidates: Vec<NodeRoom<'_>>, count: u32, piece: u32) -> Option<Vec<(NodeRoom<'_>, u32)>> {
    candidates.retain(|candidate| candidate.units >= piece);
    let pieces = usize::try_from(count / piece.max(1)).ok()?;
    candidates.sort_by_key(|candidate| (candidate.units, candidate.id));
    if pieces <= candidates.len() {
        candidates.truncate(pieces);
    }
    let mut dealt: Vec<(NodeRoom<'_>, u32)> = candidates.into_iter().map(|candidate| (candidate, 0)).collect();
    let mut left = count;
    while left > 0 {
        let before = left;
        for (candidate, here) in &mut dealt {
            if left >= piece && candidate.units - *here >= piece {
                *here += piece;
                left -= piece;
            }
        }
        if left == before {
            return None;
        }
    }
    dealt.retain(|(_, here)| *here > 0);
    Some(dealt)
}

/// Shares that fit under the topology: on one node, on the nodes of one network, or on all nodes.
pub(crate) fn total_room<'a>(
    rooms: impl Iterator<Item = (&'a Node, Option<&'a NodeOccupancy>, u32)>,
    topology: Topology,
    load: Load,
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
        let joined =
            rooms.iter().filter(|(node, lent, _)| has_bandwidth(node, *lent, network, topology.rdma_gbits, load));
        joined.map(|(_, _, units)| units).sum()
    };
    networks(rooms.iter().map(|(node, _, _)| *node)).into_iter().map(on).max().unwrap_or(0).max(most)
}

fn networks<'a>(nodes: impl Iterator<Item = &'a Node>) -> BTreeSet<&'a str> {
    nodes.flat_map(|node| node.wiring.rdma_gbits.keys()).map(String::as_str).collect()
}
