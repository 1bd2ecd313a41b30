//! Which leases a node can serve with the instances that it has. Any instance of a profile serves.

use std::collections::BTreeSet;

use comity_agent_kubernetes::gpu_resource::NVIDIA_MIG_PREFIX;
use comity_agent_kubernetes::pod_request::Amounts;
use comity_types::LeaseId;

use super::device_layout::DeviceLayout;
use super::mig_node::{of, resource, resources};
use super::node_state::{LeaseNeed, NodeState};

/// Instances of a node, by resource.
pub(crate) struct Supply {
    /// Left for leases.
    free: Amounts,
    /// In use by pods of no lease, and by leases that are served.
    taken: Amounts,
}

impl Supply {
    /// What the node can allocate; with layouts no more than they have.
    pub(crate) fn of(state: NodeState<'_>, layouts: Option<&[DeviceLayout]>) -> Self {
        let NodeState { node, leases, .. } = state;
        let mut leased = Amounts::new();
        for need in leases {
            *leased.entry(resource(&need.profile)).or_default() += need.count();
        }
        let names: BTreeSet<String> = leased.keys().chain(node.local.keys()).chain(node.lent.keys()).cloned().collect();
        let total = layouts.map(resources);
        let mut supply = Self { free: Amounts::new(), taken: Amounts::new() };
        for name in names {
            // Pods of ended leases, which are on their way out.
            let strays = of(&node.lent, &name).saturating_sub(of(&leased, &name));
            let others = of(&node.local, &name).saturating_add(strays);
            let allocatable = of(&node.allocatable, &name);
            let has = total.as_ref().map_or(allocatable, |total| of(total, &name).min(allocatable));
            supply.free.insert(name.clone(), has.saturating_sub(others));
            supply.taken.insert(name, others);
        }
        supply.note_served(leases);
        supply
    }

    /// Leases that are served, older ones first.
    pub(crate) fn serve(&self, leases: &[LeaseNeed]) -> BTreeSet<LeaseId> {
        let mut free = self.free.clone();
        let mut served = BTreeSet::new();
        for need in leases {
            let left = free.entry(resource(&need.profile)).or_default();
            if *left >= need.count() {
                *left -= need.count();
                served.insert(need.lease);
            }
        }
        served
    }

    fn note_served(&mut self, leases: &[LeaseNeed]) {
        let served = self.serve(leases);
        for need in leases.iter().filter(|need| served.contains(&need.lease)) {
            *self.taken.entry(resource(&need.profile)).or_default() += need.count();
        }
    }

    /// Whether other layouts have all that is taken.
    pub(crate) fn is_covered_by(&self, layouts: &[DeviceLayout]) -> bool {
        let total = resources(layouts);
        let is_instance = |name: &str| name.starts_with(NVIDIA_MIG_PREFIX);
        self.taken.iter().filter(|(name, _)| is_instance(name)).all(|(name, taken)| of(&total, name) >= *taken)
    }
}
