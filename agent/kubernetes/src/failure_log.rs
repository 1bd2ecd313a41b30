//! Remembers lasting failures, so that each is logged once and not at every retry.

use std::collections::BTreeMap;

/// Most failures remembered.
const MAX_FAILURES: usize = 10_000;

/// The last reason of each failing operation.
#[derive(Debug, Default)]
pub struct FailureLog {
    reasons: BTreeMap<String, String>,
}

impl FailureLog {
    /// Records a failure of `what`; true if its reason is not the last one recorded.
    pub fn is_new(&mut self, what: &str, reason: &str) -> bool {
        if self.reasons.len() >= MAX_FAILURES {
            self.reasons.clear();
        }
        self.reasons.insert(what.to_owned(), reason.to_owned()).is_none_or(|before| before != reason)
    }

    /// Records a success of `what`.
    pub fn cleared(&mut self, what: &str) {
        self.reasons.remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_new_once_and_again_after_a_success() {
        let mut failures = FailureLog::default();
        assert!(failures.is_new("a", "no") && !failures.is_new("a", "no") && failures.is_new("b", "no"));
        assert!(failures.is_new("a", "still no"));
        failures.cleared("a");
        assert!(failures.is_new("a", "still no"));
    }
}
