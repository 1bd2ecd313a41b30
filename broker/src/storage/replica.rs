//! The replicated state in memory.

use std::cell::Cell;
use std::sync::{Arc, PoisonError, RwLock};

use comity_core::reply::Applied;
use comity_core::{IllegalChange, LogEnvelope, State, snapshot};
use tokio::sync::watch;

use crate::replication::types::{LogId, SnapshotMeta, StoredMembership};
use crate::storage::{ApplyObserver, SnapshotMade};

/// State, and the position up to which the log is applied. Only the state machine changes it. Keep reads short: apply
/// waits for the lock.
pub(crate) struct Replica {
    replicated: RwLock<Replicated>,
    observer: Arc<dyn ApplyObserver>,
    revision: watch::Sender<u64>,
    /// Index of the next entry to apply.
    next_index: watch::Sender<u64>,
}

/// Contents of a snapshot.
pub(crate) struct Replicated {
    pub(crate) state: State,
    pub(crate) last_applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
    /// Why the state must not be used any more: an entry broke its rules and left it half changed.
    broken: Option<IllegalChange>,
}

impl Replicated {
    pub(crate) fn new(state: State, last_applied: Option<LogId>, membership: StoredMembership) -> Self {
        Self { state, last_applied, membership, broken: None }
    }

    pub(crate) fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.last_applied, last_membership: self.membership.clone() }
    }

    /// A copy for a snapshot; an error if the state is broken.
    pub(super) fn copy_for_snapshot(&self) -> Result<Self, IllegalChange> {
        match &self.broken {
            Some(broken) => Err(broken.clone()),
            None => Ok(Self::new(snapshot::copy(&self.state), self.last_applied, self.membership.clone())),
        }
    }
}

impl Replica {
    pub(super) fn new(
        state: State,
        last_applied: Option<LogId>,
        membership: StoredMembership,
        observer: Arc<dyn ApplyObserver>,
    ) -> Self {
        Self {
            revision: watch::Sender::new(state.revision),
            next_index: watch::Sender::new(next_index(last_applied)),
            replicated: RwLock::new(Replicated::new(state, last_applied, membership)),
            observer,
        }
    }

    /// Runs `f` on the state; blocks apply meanwhile. `f` must not read again: once apply waits for this read, another
    /// read waits for apply. Debug builds panic there.
    pub(crate) fn read<T>(&self, f: impl FnOnce(&Replicated) -> T) -> T {
        let _access = StateAccess::begin();
        // A panic of a reader leaves the state intact. A panic during apply ends openraft's task, and this broker
        // leaves the group; earlier state may still be read as stale.
        f(&self.replicated.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Last applied revision.
    pub(crate) fn revision(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Index of the last entry that is applied; 0 before the first.
    pub(crate) fn applied_index(&self) -> u64 {
        self.next_index.borrow().saturating_sub(1)
    }

    /// Waits until the entry at `index` is applied.
    pub(crate) async fn applied(&self, index: u64) {
        // The channel stays open, because this object holds its sender.
        let _ = self.next_index.subscribe().wait_for(|next| *next > index).await;
    }

    /// Applies a command. After an error the state stays broken: the broker must stop.
    pub(super) fn apply(&self, log_id: LogId, envelope: &LogEnvelope) -> Result<Applied, IllegalChange> {
        let applied = {
            let _access = StateAccess::begin();
            let mut replicated = self.replicated.write().unwrap_or_else(PoisonError::into_inner);
            let applied = match replicated.state.apply(envelope) {
                Ok(applied) => applied,
                Err(illegal) => {
                    replicated.broken = Some(illegal.clone());
                    return Err(illegal);
                }
            };
            replicated.last_applied = Some(log_id);
            self.observer.applied(&replicated.state, &applied);
            applied
        };
        self.publish(applied.revision, Some(log_id));
        Ok(applied)
    }

    /// Applies an entry without a command.
    pub(super) fn advance(&self, log_id: LogId, membership: Option<StoredMembership>) {
        let revision = {
            let _access = StateAccess::begin();
            let mut replicated = self.replicated.write().unwrap_or_else(PoisonError::into_inner);
            replicated.last_applied = Some(log_id);
            if let Some(membership) = membership {
                replicated.membership = membership;
            }
            replicated.state.revision
        };
        self.publish(revision, Some(log_id));
    }

    /// Replaces the whole state by a snapshot.
    pub(super) fn replace(&self, state: State, meta: &SnapshotMeta) {
        let revision = state.revision;
        {
            let _access = StateAccess::begin();
            let mut replicated = self.replicated.write().unwrap_or_else(PoisonError::into_inner);
            *replicated = Replicated::new(state, meta.last_log_id, meta.last_membership.clone());
            self.observer.restored(&replicated.state);
        }
        self.publish(revision, meta.last_log_id);
    }

    /// Notifies the observer of a snapshot.
    pub(super) fn snapshot_made(&self, made: &SnapshotMade) {
        self.observer.snapshot_made(made);
    }

    fn publish(&self, revision: u64, last_applied: Option<LogId>) {
        self.revision.send_if_modified(|before| std::mem::replace(before, revision) != revision);
        self.next_index.send_replace(next_index(last_applied));
    }
}

thread_local! {
    static HAS_ACCESS: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, this thread reads or changes a state.
struct StateAccess;

impl StateAccess {
    fn begin() -> Self {
        let nested = HAS_ACCESS.replace(true);
        debug_assert!(!nested, "a read of the state within another one, or within apply, deadlocks once apply waits");
        Self
    }
}

impl Drop for StateAccess {
    fn drop(&mut self) {
        HAS_ACCESS.set(false);
    }
}

fn next_index(last_applied: Option<LogId>) -> u64 {
    last_applied.map_or(0, |id| id.index.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::suite_tests::Blind;

    #[test]
    #[should_panic = "a read of the state within another one"]
    fn a_read_within_a_read_is_found_before_it_deadlocks() {
        let state = State::default();
        let replica = Replica::new(state, None, StoredMembership::default(), Arc::new(Blind));
        replica.read(|_| replica.read(|_| ()));
    }

    #[test]
    fn no_snapshot_is_made_of_a_broken_state() {
        let mut replicated = Replicated::new(State::default(), None, StoredMembership::default());
        assert!(replicated.copy_for_snapshot().is_ok());
        let illegal = IllegalChange { revision: 1, what: "lease-1 went from Ended to Active".to_owned() };
        replicated.broken = Some(illegal.clone());
        assert_eq!(replicated.copy_for_snapshot().err(), Some(illegal));
    }
}
