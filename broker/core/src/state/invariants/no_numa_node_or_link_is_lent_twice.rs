use std::collections::BTreeMap;

use crate::model::inventory::NumaAmounts;
use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const NO_NUMA_NODE_OR_LINK_IS_LENT_TWICE: Invariant = Invariant {
    sentence: "no NUMA node's CPU or memory, no RDMA bandwidth and no virtual function is lent twice",
    check,
};

/// Use of one node by leases, and the highest offer generation among them.
#[derive(Default)]
struct NodeUse {
    numa: BTreeMap<u32, (NumaAmounts, u64)>,
    rdma_gbits: BTreeMap<String, (u64, u64)>,
    rdma_functions: BTreeMap<String, (u64, u64)>,
}

/// Sums use from the leases themselves. A node may shrink below what it already lends, so the check compares use with
/// capacity only if a lease was placed under the current offer: that lease was given what was left.
fn check(state: &State) -> Vec<String> {
    let mut lent: BTreeMap<_, NodeUse> = BTreeMap::new();
    for lease in state.leases.values().filter(|lease| lease.occupies()) {
        let generation = lease.placement.offer_generation;
        for (node, part) in &lease.placement.nodes {
            let lent = lent.entry((&lease.placement.donor, node)).or_default();
            for (&number, taken) in &part.numa {
                let (sum, newest) = lent.numa.entry(number).or_default();
                (*sum, *newest) = (sum.plus(*taken), generation.max(*newest));
            }
            for (network, taken) in &part.rdma_gbits {
                let (sum, newest) = lent.rdma_gbits.entry(network.clone()).or_default();
                (*sum, *newest) = (sum.saturating_add(u64::from(*taken)), generation.max(*newest));
            }
            for taken in part.rdma_functions.values() {
                let (sum, newest) = lent.rdma_functions.entry(taken.resource.clone()).or_default();
                (*sum, *newest) = (sum.saturating_add(u64::from(taken.count)), generation.max(*newest));
            }
        }
    }
    let mut twice = Vec::new();
    for ((donor, id), lent) in lent {
        let Some(offer) = state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref()) else { continue };
        let Some(node) = offer.nodes.get(id) else { continue };
        for (number, (sum, newest)) in lent.numa {
            let has = node.wiring.numa.get(&number).copied().unwrap_or_default();
            if newest == offer.generation && (sum.cpu_milli > has.cpu_milli || sum.memory_mib > has.memory_mib) {
                twice.push(format!("NUMA node {number} of node {id} of {donor} has {has:?} and lends {sum:?}"));
            }
        }
        for (network, (sum, newest)) in lent.rdma_gbits {
            let has = node.wiring.rdma_gbits.get(&network).copied().unwrap_or(0);
            if newest == offer.generation && sum > u64::from(has) {
                twice.push(format!("node {id} of {donor} has {has} Gbit/s on {network} and lends {sum}"));
            }
        }
        for (resource, (sum, newest)) in lent.rdma_functions {
            let of_resource = node.wiring.rdma_functions.values().find(|functions| functions.resource == resource);
            let has = of_resource.map_or(0, |functions| functions.count.saturating_sub(functions.local));
            if newest == offer.generation && sum > u64::from(has) {
                twice.push(format!("node {id} of {donor} has {has} {resource} to lend and lends {sum}"));
            }
        }
    }
    twice
}
