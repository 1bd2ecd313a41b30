use crate::model::lease::Lease;
use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const UNHEALTHY_DEVICES_GET_NO_LEASES: Invariant =
    Invariant { sentence: "no lease is placed on an unhealthy or quarantined node or device", check };

/// A device may fail after a lease was placed on it. But a lease that is not in force yet and was placed under the
/// current offer was placed on the devices as they are now: only a new offer can quarantine a device or node.
fn check(state: &State) -> Vec<String> {
    let mut violations = Vec::new();
    for (id, lease) in state.live_leases().filter(|(_, lease)| lease.state.is_held()) {
        if let Some(violation) = violation_of(state, lease) {
            violations.push(format!("{id} {violation}"));
        }
    }
    violations
}

fn violation_of(state: &State, lease: &Lease) -> Option<String> {
    let donor = &lease.placement.donor;
    let offer = state.clusters.get(donor)?.offer.as_ref()?;
    if offer.generation != lease.placement.offer_generation {
        return None;
    }
    lease.placement.nodes.iter().find_map(|(id, part)| {
        let node = state.usable_node(donor, id)?;
        if !node.schedulable || !node.ready {
            return Some(format!("is on node {id} of {donor}, which must not be used"));
        }
        let ill = |index: &&u32| {
            let device = usize::try_from(**index).ok().and_then(|at| node.devices.get(at));
            device.is_none_or(|device| !device.healthy)
        };
        let device = part.devices.keys().find(ill)?;
        Some(format!("has device {device} of node {id} of {donor}, which must not be used"))
    })
}
