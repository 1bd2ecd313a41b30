//! RDMA bandwidth of a node on a network: Gbit/s as requested, or, where the node lends virtual functions, as many
//! whole functions as carry it.

use litemap::LiteMap;

use crate::feasibility::fit::device::Load;
use crate::model::inventory::Node;
use crate::model::placement::{NodePlacement, TakenFunctions};
use crate::state::occupancy::NodeOccupancy;

/// Bandwidth taken from a node on one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BandwidthPart<'a> {
    gbits: u32,
    /// Kubernetes resource and number of the virtual functions that carry it.
    functions: Option<(&'a str, u32)>,
}

impl<'a> BandwidthPart<'a> {
    /// The bandwidth to take for `gbits` on `network`.
    fn carrying(gbits: u32, node: &'a Node, network: &str) -> Self {
        let functions = node.wiring.rdma_functions.get(network).zip(node.wiring.gbits_each(network));
        let Some((functions, each)) = functions else { return Self { gbits, functions: None } };
        let count = gbits.div_ceil(each);
        Self { gbits: count.saturating_mul(each), functions: Some((&functions.resource, count)) }
    }
}

/// Whether a node has `gbits` free on `network`, in whole functions where it lends those. Under [`Load::Idle`], only
/// local work is ignored; callers pass no leases. Checks both bandwidth and functions, because the size of a function
/// may have changed since some were lent.
pub(crate) fn has_bandwidth(node: &Node, lent: Option<&NodeOccupancy>, network: &str, gbits: u32, load: Load) -> bool {
    let part = BandwidthPart::carrying(gbits, node, network);
    let less = |has: u32, lent: Option<&u32>| has.saturating_sub(lent.copied().unwrap_or(0));
    let has = node.wiring.rdma_gbits.get(network).copied().unwrap_or(0);
    if less(has, lent.and_then(|lent| lent.rdma_gbits.get(network))) < part.gbits {
        return false;
    }
    let Some((functions, (_, taken))) = node.wiring.rdma_functions.get(network).zip(part.functions) else {
        return true;
    };
    let count = if load == Load::Current { functions.count.saturating_sub(functions.local) } else { functions.count };
    less(count, lent.and_then(|lent| lent.rdma_functions.get(&functions.resource))) >= taken
}

/// Makes `part` of `node` take `gbits` of `network`.
pub(crate) fn take(part: &mut NodePlacement, node: &Node, network: &str, gbits: u32) {
    let taken = BandwidthPart::carrying(gbits, node, network);
    let functions = taken.functions.map(|(resource, count)| TakenFunctions { resource: resource.to_owned(), count });
    part.rdma_gbits = LiteMap::from_iter([(network.to_owned(), taken.gbits)]);
    part.rdma_functions = functions.into_iter().map(|functions| (network.to_owned(), functions)).collect();
}

/// Whether `part` of `node` takes exactly what carries `gbits` of `network`.
pub(crate) fn takes_exactly(part: &NodePlacement, node: &Node, network: &str, gbits: u32) -> bool {
    let mut right = NodePlacement::default();
    take(&mut right, node, network, gbits);
    part.rdma_gbits == right.rdma_gbits && part.rdma_functions == right.rdma_functions
}
