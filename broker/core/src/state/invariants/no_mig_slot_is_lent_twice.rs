use std::collections::BTreeMap;

use crate::model::mig::Slots;
use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const NO_MIG_SLOT_IS_LENT_TWICE: Invariant = Invariant { sentence: "no MIG slot is lent twice", check };

/// Overlays the MIG slots of all leases per device, from the leases themselves.
fn check(state: &State) -> Vec<String> {
    let mut lent = BTreeMap::new();
    let mut twice = Vec::new();
    for (id, lease) in state.leases.iter().filter(|(_, lease)| lease.occupies()) {
        for (node, part) in &lease.placement.nodes {
            for (index, share) in &part.devices {
                let held = lent.entry((&lease.placement.donor, node, index)).or_insert(Slots::NONE);
                if held.overlaps(share.slots) {
                    let donor = &lease.placement.donor;
                    twice.push(format!(
                        "{id} holds slots of device {index} of node {node} of {donor} that another holds"
                    ));
                }
                *held = held.with(share.slots);
            }
        }
    }
    twice
}
