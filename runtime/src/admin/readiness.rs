//! Readiness of a process: the conjunction of its named parts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Parts = BTreeMap<String, Option<String>>;

/// Ready if all parts are ready, also without parts. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    /// By part, the reason why it is not ready; `None` if it is.
    parts: Arc<Mutex<Parts>>,
}

impl Readiness {
    /// Readiness without parts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part that is not ready yet ("starting").
    pub fn guard(&self, name: impl Into<String>) -> ReadinessGuard {
        let guard = ReadinessGuard { name: name.into(), readiness: self.clone() };
        guard.not_ready("starting");
        guard
    }

    /// Names of the parts that are not ready, with their reasons.
    pub fn pending(&self) -> Vec<(String, String)> {
        let parts = self.parts();
        parts.iter().filter_map(|(name, reason)| Some((name.clone(), reason.clone()?))).collect()
    }

    /// Whether every part is ready.
    pub fn is_ready(&self) -> bool {
        self.parts().values().all(Option::is_none)
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // Each change is one insertion, so a poisoned lock has consistent content.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the readiness of one part. Dropping it reports "stopped", so that a dead task does not look ready.
#[derive(Debug)]
pub struct ReadinessGuard {
    name: String,
    readiness: Readiness,
}

impl ReadinessGuard {
    /// Marks the part as ready.
    pub fn ready(&self) {
        self.set(None);
    }

    /// Marks the part as not ready, with a reason such as "no Raft leader".
    pub fn not_ready(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    fn set(&self, reason: Option<String>) {
        self.readiness.parts().insert(self.name.clone(), reason);
    }
}

impl Drop for ReadinessGuard {
    fn drop(&mut self) {
        self.not_ready("stopped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_part_is() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        let (raft, grpc) = (readiness.guard("raft"), readiness.guard("grpc"));
        raft.ready();
        assert_eq!(readiness.pending(), [("grpc".to_owned(), "starting".to_owned())]);
        grpc.ready();
        assert!(readiness.is_ready());
        raft.not_ready("no leader");
        assert_eq!(readiness.pending(), [("raft".to_owned(), "no leader".to_owned())]);
        raft.ready();
        drop(grpc);
        assert_eq!(readiness.pending(), [("grpc".to_owned(), "stopped".to_owned())]);
    }
}
