//! Renews leases that pods use, and warns the pods of a lease that ends all the same.

use super::{BurstAction, Planner, notes};
use crate::burst::note::Note;
use crate::burst::slots::{self, Slot};
use crate::burst::snapshot::{LeaseFacts, LeaseStage};
use crate::lease_end::{self, Urgency};

/// A lease is renewed when this part of its term is left: time for several attempts.
const RENEW_AT_PART: u64 = 3;

impl Planner<'_> {
    /// Renews the leases that this cluster requested, by bursts and by GpuRequests, as long as pods use them.
    pub(super) fn renew_used(&mut self) {
        let slots = self.slots.clone();
        for (request, slot) in &slots {
            let Some((lease, facts)) = in_use(slot) else { continue };
            let refusal = self.snapshot.renewals_refused.get(lease).filter(|(_, until)| *until > self.snapshot.now_ms);
            let why = match (slot.is_submitted_here, refusal) {
                (true, None) => {
                    self.renew(lease, facts);
                    continue;
                }
                (true, Some((reason, until))) => {
                    self.at(*until);
                    format!("the broker does not renew it: {reason}")
                }
                // People renew their own.
                (false, _) => format!("to keep it, comity lease renew {lease}"),
            };
            self.warn_pods(request, lease, facts, &why);
        }
    }

    fn renew(&mut self, lease: &str, facts: &LeaseFacts) {
        let due = facts.expires_at_ms.saturating_sub(facts.term_ms / RENEW_AT_PART);
        if due <= self.snapshot.now_ms {
            self.actions.push(BurstAction::Renew { lease: lease.to_owned(), expires_at_ms: facts.expires_at_ms });
        } else {
            self.at(due);
        }
    }

    fn warn_pods(&mut self, request: &str, lease: &str, facts: &LeaseFacts, why: &str) {
        let warning = lease_end::warning(facts.expires_at_ms, facts.term_ms, self.snapshot.now_ms);
        warning.next_ms.into_iter().for_each(|at| self.at(at));
        let note: Note = match warning.due {
            Some(Urgency::VerySoon) => notes::ends_soon(lease, facts, why),
            Some(Urgency::Soon) => notes::ends(lease, facts, why),
            None => return,
        };
        for pod in self.snapshot.pods.iter().map(|pod| &pod.facts).filter(|pod| pod.node.is_some()) {
            if slots::request_of(self.snapshot, pod) == Some(request) {
                self.tell(pod, note.clone());
            }
        }
    }
}

/// The slot's lease, if pods use it and it has an end.
fn in_use<'a>(slot: &Slot<'a>) -> Option<(&'a str, &'a LeaseFacts)> {
    let (lease, facts) = slot.lease?;
    (slot.used > 0 && facts.stage == LeaseStage::Active && facts.expires_at_ms > 0).then_some((lease, facts))
}
