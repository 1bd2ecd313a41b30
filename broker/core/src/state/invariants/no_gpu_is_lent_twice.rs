use std::collections::BTreeMap;

use crate::model::limits::WHOLE_MILLI;
use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const NO_GPU_IS_LENT_TWICE: Invariant = Invariant { sentence: "no GPU is lent twice", check };

/// Sums device use from the leases themselves, not from the derived occupancy.
fn check(state: &State) -> Vec<String> {
    let mut lent = BTreeMap::new();
    for lease in state.leases.values().filter(|lease| lease.occupies()) {
        for (node, part) in &lease.placement.nodes {
            for (index, share) in &part.devices {
                *lent.entry((&lease.placement.donor, node, index)).or_insert(0_u32) += share.milli;
            }
        }
    }
    lent.into_iter()
        .filter(|(_, milli)| *milli > WHOLE_MILLI)
        .map(|((donor, node, index), milli)| format!("device {index} of node {node} of {donor} is lent {milli}/1000"))
        .collect()
}
