//! Failures that last: each is said once, and not at every try.

use std::collections::BTreeMap;

/// Failures that are remembered.
const MOST_FAILURES: usize = 10_000;

/// What fails, and why.
#[derive(Debug, Default)]
pub(crate) struct Failing {
    reasons: BTreeMap<String, String>,
}

impl Failing {
    /// Whether this is another failure of the thing than its last.
    pub(crate) fn is_news(&mut self, what: &str, reason: &str) -> bool {
        if self.reasons.len() >= MOST_FAILURES {
            self.reasons.clear();
        }
        self.reasons.insert(what.to_owned(), reason.to_owned()).is_none_or(|before| before != reason)
    }

    /// It went well.
    pub(crate) fn ended(&mut self, what: &str) {
        self.reasons.remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_news_until_it_is_known_and_again_after_it_ended() {
        let mut failing = Failing::default();
        assert!(failing.is_news("a", "no") && !failing.is_news("a", "no") && failing.is_news("b", "no"));
        assert!(failing.is_news("a", "still no"));
        failing.ended("a");
        assert!(failing.is_news("a", "still no"));
    }
}
