//! What goes wrong at present, for people: steps that wait to be retried, an offer or reports that a broker refused,
//! handshakes that failed, and a history of the audit log that is another one than before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity_agent_model::peering::PeeringDirective;
use comity_types::{PeeringId, PeeringState, printable_line};

/// Refused reports that are kept, the newest last.
const KEPT_REFUSALS: usize = 8;
/// Characters of an error.
const MAX_ERROR_CHARS: usize = 512;

/// Steps that fail, an offer and reports that were refused, and handshakes that failed.
#[derive(Default)]
pub struct CurrentFailures(Mutex<Failing>);

#[derive(Default)]
struct Failing {
    steps: BTreeMap<String, String>,
    refused: VecDeque<String>,
    handshakes: BTreeMap<PeeringId, String>,
    offer: Option<String>,
    audit_head: Option<String>,
}

impl CurrentFailures {
    fn failing(&self) -> MutexGuard<'_, Failing> {
        // Each change is one assignment or insertion, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the steps that wait to be retried, by "object/step", with their errors.
    pub(crate) fn set_steps(&self, steps: BTreeMap<String, String>) {
        self.failing().steps = steps.into_iter().map(|(step, error)| (step, shortened(&error))).collect();
    }

    /// Notes a report that a broker refused, with its reason.
    pub(crate) fn note_refused(&self, refusal: &str) {
        let mut failing = self.failing();
        if failing.refused.len() == KEPT_REFUSALS {
            failing.refused.pop_front();
        }
        failing.refused.push_back(shortened(refusal));
    }

    /// Notes the handshakes that failed, and returns those that failed for a new reason. A reason is kept through further
    /// tries, until one succeeds or the peering ends.
    pub(crate) fn note_handshakes(&self, peerings: &[PeeringDirective]) -> Vec<(PeeringId, String)> {
        let mut failing = self.failing();
        let tried = |directive: &&PeeringDirective| {
            directive.peering.state.is_some_and(|state| state.is_handshaking() || state == PeeringState::Failed)
        };
        let mut left = std::mem::take(&mut failing.handshakes);
        let mut new = Vec::new();
        for PeeringDirective { peering, .. } in peerings.iter().filter(tried) {
            let known = left.remove(&peering.id);
            let reason = if peering.state == Some(PeeringState::Failed) {
                let reason = shortened(&peering.message);
                if known.as_ref() != Some(&reason) {
                    new.push((peering.id, reason.clone()));
                }
                Some(reason)
            } else {
                known
            };
            failing.handshakes.extend(reason.map(|reason| (peering.id, reason)));
        }
        new
    }

    /// Handshakes that failed, by peering, with the reasons.
    #[must_use]
    pub fn handshakes(&self) -> BTreeMap<String, String> {
        self.failing().handshakes.iter().map(|(peering, reason)| (peering.to_string(), reason.clone())).collect()
    }

    /// Says why a broker refused the newest offer; `None` once it took one.
    pub(crate) fn set_refused_offer(&self, refusal: Option<&str>) {
        self.failing().offer = refusal.map(shortened);
    }

    /// Why a broker refused the newest offer.
    #[must_use]
    pub fn refused_offer(&self) -> Option<String> {
        self.failing().offer.clone()
    }

    /// Says why the newest head of the audit log was refused; `None` once one was accepted.
    pub(crate) fn set_refused_audit_head(&self, refusal: Option<&str>) {
        self.failing().audit_head = refusal.map(shortened);
    }

    /// Why the newest head of the audit log was refused.
    #[must_use]
    pub fn refused_audit_head(&self) -> Option<String> {
        self.failing().audit_head.clone()
    }

    /// Steps that wait to be retried, by "object/step", with their errors.
    #[must_use]
    pub fn steps(&self) -> BTreeMap<String, String> {
        self.failing().steps.clone()
    }

    /// The newest reports that a broker refused, the newest last.
    #[must_use]
    pub fn refused(&self) -> Vec<String> {
        self.failing().refused.iter().cloned().collect()
    }
}

/// One line of bounded length: brokers and clusters write parts of it.
fn shortened(error: &str) -> String {
    printable_line(error).chars().take(MAX_ERROR_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use comity_agent_model::peering::Peering;

    use super::*;

    #[test]
    fn the_newest_refusals_are_kept_and_are_lines_of_bounded_length() {
        let failures = CurrentFailures::default();
        for number in 0..=KEPT_REFUSALS {
            failures.note_refused(&format!("{number}\n{}", "x".repeat(MAX_ERROR_CHARS)));
        }
        let refused = failures.refused();
        assert_eq!(refused.len(), KEPT_REFUSALS);
        assert!(refused.first().is_some_and(|oldest| oldest.starts_with('1')), "{refused:?}");
        assert!(refused.iter().all(|line| line.chars().count() <= MAX_ERROR_CHARS && !line.contains('\n')));
        failures.set_steps([("peer-1/open-psk".to_owned(), "gone".to_owned())].into());
        assert_eq!(failures.steps().len(), 1);
        failures.set_steps(BTreeMap::new());
        assert!(failures.steps().is_empty());
    }
    #[test]
    fn a_failed_handshake_is_told_once_and_kept_until_one_succeeds() {
        let failures = CurrentFailures::default();
        let peering = |state, message: &str| {
            let peering = Peering {
                id: PeeringId(6),
                origin: "west".parse().expect("a label"),
                donor: "north".parse().expect("a label"),
                state: Some(state),
                epoch: 1,
                message: message.to_owned(),
            };
            [PeeringDirective {
                peering,
                origin_keys: None,
                donor_keys: None,
                peer_identity_key: String::new(),
                peer_institution: String::new(),
                reported_established: false,
            }]
        };
        let failed = peering(PeeringState::Failed, "north: west shows no voucher (voucher-missing)");
        assert_eq!(failures.note_handshakes(&failed).len(), 1);
        assert!(failures.note_handshakes(&failed).is_empty(), "told already");
        assert!(failures.note_handshakes(&peering(PeeringState::Keys, "waiting for the other side's keys")).is_empty());
        let shown = failures.handshakes();
        assert!(shown.get("peer-6").is_some_and(|reason| reason.contains("voucher-missing")), "{shown:?}");
        assert!(failures.note_handshakes(&peering(PeeringState::Established, "")).is_empty());
        assert!(failures.handshakes().is_empty());
    }
}
