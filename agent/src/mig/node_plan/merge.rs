//! Merges devices back: one that has been empty for a while returns to the configuration that its node had before.

use std::collections::BTreeSet;

use super::{CutStep, KnownNode, NodeMemory, Supply};
use crate::mig::device_layout::DeviceLayout;
use crate::mig::mig_config::OWN_PREFIX;

impl KnownNode<'_> {
    /// The next step back, if one is due.
    pub(super) fn merge(&self, memory: &mut NodeMemory, layouts: &[DeviceLayout], supply: &Supply) -> Option<CutStep> {
        let (node, now) = (self.state.node, self.state.now);
        if !node.config().starts_with(OWN_PREFIX) {
            memory.empty_since.clear();
            return (!node.before.is_empty()).then_some(CutStep::ForgetBefore);
        }
        // Without it the owner removed the annotation or the configuration: then nobody knows where to return.
        let before = self.layouts(&node.before).ok()?;
        let differs = |device: usize| match (layouts.get(device), before.get(device)) {
            (Some(now), Some(before)) => now.counts() != before.counts(),
            _ => false,
        };
        let is_wanted = |device: usize| self.state.leases.iter().any(|need| need.devices.contains_key(&device));
        let empty: BTreeSet<usize> = (0..layouts.len())
            .filter(|device| differs(*device) && self.is_free(*device, layouts) && !is_wanted(*device))
            .collect();
        memory.empty_since.retain(|device, _| empty.contains(device));
        let mut next = layouts.to_vec();
        let mut is_due = false;
        for device in empty {
            let since = *memory.empty_since.entry(device).or_insert(now);
            if now.saturating_sub(since) >= self.state.settings.empty()
                && let (Some(layout), Some(before)) = (next.get_mut(device), before.get(device))
            {
                layout.clone_from(before);
                is_due = true;
            }
        }
        let may = is_due && memory.failure.is_none() && supply.is_covered_by(&next);
        may.then(|| self.apply(memory, layouts, next, BTreeSet::new()))
    }
}
