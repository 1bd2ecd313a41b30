//! Clusters that a bundle would have lend more or less.

use comity_types::ClusterId;

use super::Effects;
use crate::model::limits::WHOLE_MILLI;
use crate::state::State;

/// A cluster that would lend more or less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityEffect {
    /// The cluster.
    pub cluster: ClusterId,
    /// Thousandths of GPUs that it may lend in all under the bundle in force.
    pub before_milli: u64,
    /// The same under the new bundle.
    pub after_milli: u64,
}

/// The clusters whose terms would let them lend more or less, by id.
pub(super) fn capacity_effects(before: &State, after: &State) -> Effects<CapacityEffect> {
    let effect = |cluster: &ClusterId| {
        let [before_milli, after_milli] = [before, after].map(|state| lent_at_most_milli(state, cluster));
        let cluster = cluster.clone();
        (before_milli != after_milli).then_some(CapacityEffect { cluster, before_milli, after_milli })
    };
    before.clusters.keys().filter_map(effect).collect()
}

/// Thousandths of healthy GPUs that the cluster's terms allow it to lend in all, without those that local work holds or
/// that are reserved for it.
pub(super) fn lent_at_most_milli(state: &State, cluster: &ClusterId) -> u64 {
    let bundle = state.policy.as_ref().map(|record| &record.bundle);
    let Some(terms) = bundle.and_then(|bundle| bundle.clusters.get(cluster.as_str())).map(|terms| &terms.spec) else {
        return 0;
    };
    if !terms.accepting {
        return 0;
    }
    let of_classes = |lent: &dyn Fn(&str) -> bool| devices_milli(state, cluster, lent);
    let all = of_classes(&|class| terms.lends.iter().any(|term| term.classes.contains(class)));
    let of_terms = terms.lends.iter().map(|term| {
        let held = of_classes(&|class| term.classes.contains(class));
        term.max_gpus_milli.map_or(held, |most| most.min(held))
    });
    let of_terms = of_terms.fold(0, u64::saturating_add);
    let kept = all.saturating_sub(terms.local_reserve_gpus_milli).min(of_terms);
    terms.max_lent_gpus_milli.map_or(kept, |most| most.min(kept))
}

/// Thousandths of the cluster's healthy devices in the classes that `lent` accepts, without local use.
pub(super) fn devices_milli(state: &State, cluster: &ClusterId, lent: &dyn Fn(&str) -> bool) -> u64 {
    let offer = state.clusters.get(cluster).and_then(|cluster| cluster.offer.as_ref());
    let mut milli = 0_u64;
    for (id, node) in offer.into_iter().flat_map(|offer| &offer.nodes) {
        let node = state.usable_node(cluster, id).unwrap_or(node);
        let devices = node.devices.iter().zip(state.device_classes(cluster, id)).filter(|_| node.schedulable);
        for (device, class) in devices.filter(|(device, _)| device.healthy) {
            if class.as_ref().is_some_and(|class| lent(class.as_str())) {
                milli = milli.saturating_add(WHOLE_MILLI.saturating_sub(device.local_use_milli).into());
            }
        }
    }
    milli
}
