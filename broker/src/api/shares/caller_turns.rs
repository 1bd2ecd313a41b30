//! Limits how much of one kind one caller has under way at once; its further ones wait.
//!
//! What everybody shares is first come, first served: the log's pipeline, and the threads of long calls. Behind these
//! turns no caller has more than its part of such a line, however much it sends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::caller::Caller;

/// Commands of one caller in the log's pipeline. With more of them others wait several times as long as alone; fewer
/// would share too few fsyncs.
pub const MAX_PROPOSALS_PER_CALLER: usize = 8;
/// Callers with nothing under way are dropped once there are this many callers.
const CALLERS_BEFORE_TIDYING: usize = 256;

type Turns = BTreeMap<String, Weak<Semaphore>>;

/// Turns of all callers, each first come, first served. Clones share them.
#[derive(Debug, Clone)]
pub struct CallerTurns {
    per_caller: usize,
    turns: Arc<Mutex<Turns>>,
}

/// A caller's turn, until dropped.
#[derive(Debug)]
pub struct CallerTurn {
    /// `None` if there were no limit: the semaphore is never closed.
    _permit: Option<OwnedSemaphorePermit>,
}

impl CallerTurns {
    /// Turns of which each caller has at most `per_caller` at once.
    #[must_use]
    pub fn new(per_caller: usize) -> Self {
        Self { per_caller, turns: Arc::default() }
    }

    /// Waits for a turn of the caller.
    pub async fn take(&self, caller: &Caller) -> CallerTurn {
        CallerTurn { _permit: self.of(caller.name()).acquire_owned().await.ok() }
    }

    fn of(&self, caller: String) -> Arc<Semaphore> {
        // Each change is one entry, so a panic elsewhere leaves nothing half done.
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.len() >= CALLERS_BEFORE_TIDYING {
            turns.retain(|_, turns| turns.strong_count() > 0);
        }
        let held = turns.get(&caller).and_then(Weak::upgrade);
        held.unwrap_or_else(|| {
            let new = Arc::new(Semaphore::new(self.per_caller));
            turns.insert(caller, Arc::downgrade(&new));
            new
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::spiffe::{SpiffeId, TrustDomain, UserName};
    use futures::FutureExt as _;

    use super::*;

    fn user(name: &str) -> Caller {
        Caller::User(SpiffeId::user(TrustDomain::new("comity.example").unwrap(), UserName::new(name).unwrap()), 0)
    }

    #[test]
    fn one_callers_commands_wait_and_those_of_others_do_not() {
        let turns = CallerTurns::new(3);
        let take = |name: &str| turns.take(&user(name)).now_or_never();
        let mut alice: Vec<_> = (0..3).map(|_| take("alice").unwrap()).collect();
        assert!(take("alice").is_none());
        let _bob = take("bob").unwrap();
        alice.pop();
        alice.push(take("alice").unwrap());
        assert!(take("alice").is_none());
    }

    #[test]
    fn callers_without_commands_take_no_memory() {
        let turns = CallerTurns::new(3);
        for number in 0..CALLERS_BEFORE_TIDYING {
            assert!(turns.take(&user(&format!("u-{number}"))).now_or_never().is_some());
        }
        let _held = turns.take(&user("alice")).now_or_never().unwrap();
        assert_eq!(turns.turns.lock().unwrap().len(), 1);
    }
}
