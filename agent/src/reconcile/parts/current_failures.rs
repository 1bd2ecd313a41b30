//! What goes wrong at present, for people: steps that wait to be retried, and an offer or reports that a broker refused.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity_types::printable_line;

/// Refused reports that are kept, the newest last.
const KEPT_REFUSALS: usize = 8;
/// Characters of an error.
const MAX_ERROR_CHARS: usize = 512;

/// Steps that fail, and an offer and reports that were refused.
#[derive(Default)]
pub struct CurrentFailures(Mutex<Failing>);

#[derive(Default)]
struct Failing {
    steps: BTreeMap<String, String>,
    refused: VecDeque<String>,
    offer: Option<String>,
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

    /// Says why a broker refused the newest offer; `None` once it took one.
    pub(crate) fn set_refused_offer(&self, refusal: Option<&str>) {
        self.failing().offer = refusal.map(shortened);
    }

    /// Why a broker refused the newest offer.
    #[must_use]
    pub fn refused_offer(&self) -> Option<String> {
        self.failing().offer.clone()
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
}
