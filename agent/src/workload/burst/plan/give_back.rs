//! Requests and leases that no pod needs any more.

use super::{BurstAction, Planner};

/// Pods that vanish may be made again by their controllers, and annotations are seen a little late.
const SETTLED_AFTER_MS: u64 = 5_000;

impl Planner<'_> {
    /// Takes back what waits for fewer pods than it was made for, and gives back leases that were idle for long enough.
    pub(super) fn give_back(&mut self) {
        let mut actions = Vec::new();
        let mut again = Vec::new();
        for (request, slot) in &self.slots {
            // Only what was made for pods: what people asked for is theirs.
            if slot.purpose.is_none() || slot.is_ending() {
                continue;
            }
            if slot.is_queued && self.view.cannot_borrow.is_some() {
                // Left from a time when it could.
                actions.push(BurstAction::Cancel { request: (*request).to_owned() });
            } else if slot.is_queued && slot.used < slot.gpus {
                let settled = slot.short_since_ms.unwrap_or(self.view.now_ms).saturating_add(SETTLED_AFTER_MS);
                let settled = settled.max(slot.kept_until_ms);
                if settled <= self.view.now_ms {
                    actions.push(BurstAction::Cancel { request: (*request).to_owned() });
                } else {
                    again.push(settled);
                }
            }
            if let Some((lease, facts)) = slot.lease.filter(|_| slot.used == 0) {
                let cooldown = match self.view.namespaces.get(slot.namespace) {
                    Some(Ok(rules)) => rules.cooldown_ms,
                    // The namespace opted out, is gone, or says something wrong: nothing there will use it.
                    _ => 0,
                };
                let Some(due) = facts.idle_since_ms.map(|since| since.saturating_add(cooldown)) else { continue };
                if due <= self.view.now_ms {
                    actions.push(BurstAction::GiveBack { lease: lease.to_owned() });
                } else {
                    again.push(due);
                }
            }
        }
        self.actions.append(&mut actions);
        again.into_iter().for_each(|at_ms| self.at(at_ms));
    }
}
