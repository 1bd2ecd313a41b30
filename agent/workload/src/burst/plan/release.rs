//! Cancels requests and releases leases that no pod needs.

use super::{BurstAction, Planner};

/// Delay of a release: controllers may make pods again, and watches show annotations late.
const RELEASE_DELAY_MS: u64 = 5_000;

impl Planner<'_> {
    /// Cancels queued requests that have fewer pods than GPUs, and releases leases after their cooldown.
    pub(super) fn release_unused(&mut self) {
        let mut actions = Vec::new();
        let mut again = Vec::new();
        for (request, slot) in &self.slots {
            // Only requests that burst made: others belong to people.
            if slot.note.is_none() || slot.is_ending() {
                continue;
            }
            if slot.is_queued && self.snapshot.cannot_borrow.is_some() {
                // Submitted while this cluster could still borrow.
                actions.push(BurstAction::Cancel { request: (*request).to_owned() });
            } else if slot.is_queued && slot.used < slot.gpus {
                let settled = slot.short_since_ms.unwrap_or(self.snapshot.now_ms).saturating_add(RELEASE_DELAY_MS);
                let settled = settled.max(slot.kept_until_ms);
                if settled <= self.snapshot.now_ms {
                    actions.push(BurstAction::Cancel { request: (*request).to_owned() });
                } else {
                    again.push(settled);
                }
            }
            if let Some((lease, facts)) = slot.lease.filter(|_| slot.used == 0) {
                let Some(idle_since) = facts.idle_since_ms else { continue };
                let due = match self.snapshot.namespaces.get(slot.namespace) {
                    // A lease that replaces a reclaimed one waits for the pods that controllers make again.
                    Some(Ok(rules)) => idle_since.saturating_add(rules.cooldown_ms).max(slot.kept_until_ms),
                    // The namespace opted out, is gone, or is invalid: its pods will not use the lease.
                    _ => idle_since,
                };
                if due <= self.snapshot.now_ms {
                    actions.push(BurstAction::ReleaseLease { lease: lease.to_owned() });
                } else {
                    again.push(due);
                }
            }
        }
        self.actions.append(&mut actions);
        again.into_iter().for_each(|at_ms| self.at(at_ms));
    }
}
