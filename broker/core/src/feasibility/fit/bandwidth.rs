//! What a node gives of a network for RDMA: Gbit/s as they are asked for, or, where it lends virtual functions, as many
//! whole functions as carry them.

use litemap::LiteMap;

use crate::model::inventory::Node;
use crate::model::placement::{NodePlacement, TakenFunctions};
use crate::state::occupancy::NodeOccupancy;

/// A part of a node's bandwidth on one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part<'a> {
    gbits: u32,
    /// Resource that counts the functions which carry it, and how many they are.
    functions: Option<(&'a str, u32)>,
}

impl<'a> Part<'a> {
    /// The part of `node` that carries `gbits` on `network`.
    fn carrying(gbits: u32, node: &'a Node, network: &str) -> Self {
        let functions = node.wiring.rdma_functions.get(network).zip(node.wiring.gbits_each(network));
        let Some((functions, each)) = functions else { return Self { gbits, functions: None } };
        let count = gbits.div_ceil(each);
        Self { gbits: count.saturating_mul(each), functions: Some((&functions.resource, count)) }
    }
}

/// Whether a node has `gbits` on `network`, in whole functions where it lends those, beside what is lent of it. Not
/// `as_it_is`: if local work had nothing. Bandwidth and functions are both counted, for what an offer says of a
/// function may have changed since some were lent.
pub(crate) fn carries(node: &Node, lent: Option<&NodeOccupancy>, network: &str, gbits: u32, as_it_is: bool) -> bool {
    let part = Part::carrying(gbits, node, network);
    let less = |has: u32, lent: Option<&u32>| has.saturating_sub(lent.copied().unwrap_or(0));
    let has = node.wiring.rdma_gbits.get(network).copied().unwrap_or(0);
    if less(has, lent.and_then(|lent| lent.rdma_gbits.get(network))) < part.gbits {
        return false;
    }
    let Some((functions, (_, taken))) = node.wiring.rdma_functions.get(network).zip(part.functions) else {
        return true;
    };
    let count = if as_it_is { functions.count.saturating_sub(functions.local) } else { functions.count };
    less(count, lent.and_then(|lent| lent.rdma_functions.get(&functions.resource))) >= taken
}

/// Has `part` of `node` take `gbits` of `network`.
pub(crate) fn take(part: &mut NodePlacement, node: &Node, network: &str, gbits: u32) {
    let taken = Part::carrying(gbits, node, network);
    let functions = taken.functions.map(|(resource, count)| TakenFunctions { resource: resource.to_owned(), count });
    part.rdma_gbits = LiteMap::from_iter([(network.to_owned(), taken.gbits)]);
    part.rdma_functions = functions.into_iter().map(|functions| (network.to_owned(), functions)).collect();
}

/// Whether `part` of `node` takes what carries `gbits` of `network`, and nothing else.
pub(crate) fn takes(part: &NodePlacement, node: &Node, network: &str, gbits: u32) -> bool {
    let mut right = NodePlacement::default();
    take(&mut right, node, network, gbits);
    part.rdma_gbits == right.rdma_gbits && part.rdma_functions == right.rdma_functions
}
