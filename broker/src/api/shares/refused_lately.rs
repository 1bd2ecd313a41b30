//! Callers whose requests no donor could serve, a moment ago. To find that out takes a look at every donor. The first
//! such request of a caller is looked at once under the lock of the state, where good requests need a moment; its next
//! ones are checked as long calls only.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity_runtime::clock::Clock;

use crate::api::caller::Caller;

/// How long a caller is remembered after a refusal.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Callers by name, with the time since the clock's start until which they are remembered. Clones share them.
#[derive(Debug, Clone)]
pub struct RefusedLately {
    clock: Arc<dyn Clock>,
    until: Arc<Mutex<BTreeMap<String, Duration>>>,
}

impl RefusedLately {
    /// Without callers.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, until: Arc::default() }
    }

    /// Remembers a caller.
    pub fn note(&self, caller: &Caller) {
        let now = self.clock.elapsed();
        // Each change is complete under the lock, so a panic elsewhere leaves nothing half done.
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.retain(|_, until| *until > now);
        until.insert(caller.name(), now + REMEMBERED);
    }

    /// Whether a caller was refused lately.
    #[must_use]
    pub fn has(&self, caller: &Caller) -> bool {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.get(&caller.name()).is_some_and(|until| *until > self.clock.elapsed())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::clock::ManualClock;
    use comity_runtime::spiffe::{SpiffeId, TrustDomain, UserName};

    use super::*;

    #[test]
    fn a_caller_is_remembered_for_a_while() {
        let clock = ManualClock::at_unix_ms(0);
        let refused = RefusedLately::new(Arc::new(clock.clone()));
        let domain = TrustDomain::new("comity.example").unwrap();
        let [alice, bob] =
            ["alice", "bob"].map(|name| Caller::User(SpiffeId::user(domain.clone(), UserName::new(name).unwrap()), 0));
        refused.note(&alice);
        assert!(refused.has(&alice) && !refused.has(&bob));
        clock.advance(REMEMBERED);
        assert!(!refused.has(&alice));
        refused.note(&bob);
        assert_eq!(refused.until.lock().unwrap().len(), 1);
    }
}
