//! Whether a process can do its work: the sum of named parts that each say so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Parts = BTreeMap<String, Option<String>>;

/// Ready when every part is; ready when there are none. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    /// A part's reason for not being ready; `None` when it is.
    parts: Arc<Mutex<Parts>>,
}

impl Readiness {
    /// Without parts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part, not ready yet ("starting").
    pub fn guard(&self, name: impl Into<String>) -> ReadinessGuard {
        let guard = ReadinessGuard { name: name.into(), readiness: self.clone() };
        guard.not_ready("starting");
        guard
    }

    /// The parts that are not ready, by name, with their reasons.
    pub fn pending(&self) -> Vec<(String, String)> {
        let parts = self.parts();
        parts.iter().filter_map(|(name, reason)| Some((name.clone(), reason.clone()?))).collect()
    }

    /// Whether every part is ready.
    pub fn is_ready(&self) -> bool {
        self.parts().values().all(Option::is_none)
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // Each change is one insertion, so a panic elsewhere leaves nothing half done.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One part's say. Dropping it says "stopped": a part whose task died must not look ready.
#[derive(Debug)]
pub struct ReadinessGuard {
    name: String,
    readiness: Readiness,
}

impl ReadinessGuard {
    /// The part can do its work.
    pub fn ready(&self) {
        self.set(None);
    }

    /// The part cannot, e.g. "no Raft leader".
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
