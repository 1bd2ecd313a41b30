//! What this broker may do in its group: whether it votes, and whether it goes on at all.
//!
//! A broker votes only if two things hold. The membership in its own log names it with the life that its disk is in: a
//! disk that lost its log begins another life, and is a member again only once the leader has admitted that one. And
//! since it started, a majority of the voters (itself among them) has said that they know of nothing which its log
//! lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::replication::identity::{GroupId, Incarnation};
use crate::storage::{DiskIdentity, Place, StorageError};

/// Why this broker cannot go on. The process ends with the sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt {
    /// Its log lost entries that it had acknowledged. Started again, it begins a new life and catches up.
    LogLost(String),
    /// It cannot go on until somebody does something.
    Stopped(String),
}

impl Halt {
    /// The sentence.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::LogLost(reason) | Self::Stopped(reason) => reason,
        }
    }
}

/// Clones share it.
#[derive(Clone)]
pub(crate) struct Standing {
    inner: Arc<Inner>,
}

struct Inner {
    disk: DiskIdentity,
    /// Whether it has looked whether it is admitted.
    looked: AtomicBool,
    admitted: AtomicBool,
    confirmed: AtomicBool,
    halt: watch::Sender<Option<Halt>>,
    /// Brokers that are members no more.
    removed: Mutex<BTreeSet<u64>>,
    /// How far each peer, in which life, told this broker that its log is on disk.
    acknowledged: Mutex<BTreeMap<u64, (Incarnation, Place)>>,
}

impl Standing {
    /// Of a disk; one whose log `is_blank` can have lost nothing that it acknowledged in this life.
    pub(crate) fn new(disk: DiskIdentity, is_blank: bool) -> Self {
        Self {
            inner: Arc::new(Inner {
                disk,
                looked: AtomicBool::new(false),
                admitted: AtomicBool::new(false),
                confirmed: AtomicBool::new(is_blank),
                halt: watch::Sender::new(None),
                removed: Mutex::new(BTreeSet::new()),
                acknowledged: Mutex::new(BTreeMap::new()),
            }),
        }
    }

    /// Of a caller that has no disk, and only asks.
    pub(crate) fn of_nothing(id: u64) -> Self {
        Self::new(DiskIdentity::of_nothing(id), true)
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.inner.disk.incarnation()
    }

    pub(crate) fn group(&self) -> Option<GroupId> {
        self.inner.disk.group()
    }

    /// Makes this broker one of `group`; on disk before it returns.
    pub(crate) async fn adopt(&self, group: GroupId) -> Result<(), StorageError> {
        let disk = self.inner.disk.clone();
        blocking(move || disk.adopt(group)).await
    }

    /// Whether this broker may vote and stand for election.
    pub(crate) fn may_vote(&self) -> bool {
        self.inner.admitted.load(Ordering::Acquire) && self.inner.confirmed.load(Ordering::Acquire)
    }

    /// Whether what this broker has on disk is known to be all that it acknowledged, or begins with nothing.
    pub(crate) fn may_append(&self) -> bool {
        let is_outside = self.inner.looked.load(Ordering::Acquire) && !self.inner.admitted.load(Ordering::Acquire);
        self.is_confirmed() || is_outside
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.inner.confirmed.load(Ordering::Acquire)
    }

    pub(crate) fn set_admitted(&self, admitted: bool) {
        self.inner.admitted.store(admitted, Ordering::Release);
        self.inner.looked.store(true, Ordering::Release);
    }

    pub(crate) fn confirm(&self) {
        self.inner.confirmed.store(true, Ordering::Release);
    }

    /// Takes note of the brokers that were removed.
    pub(crate) fn set_removed(&self, removed: BTreeSet<u64>) {
        *self.inner.removed.lock().unwrap_or_else(PoisonError::into_inner) = removed;
    }

    /// Whether a broker was removed: its certificate still names it, but it may say nothing any more.
    pub(crate) fn is_removed(&self, broker: u64) -> bool {
        self.inner.removed.lock().unwrap_or_else(PoisonError::into_inner).contains(&broker)
    }

    /// Takes note that `peer` has its log on disk up to `place`.
    pub(crate) fn note_acknowledged(&self, peer: u64, incarnation: &Incarnation, place: Place) {
        let mut all = self.acknowledged();
        match all.get_mut(&peer) {
            Some((known, at)) if known == incarnation => *at = place.max(*at),
            _ => _ = all.insert(peer, (incarnation.clone(), place)),
        }
    }

    /// How far `peer` in this life said that its log is on disk, as far as this broker was told since it started.
    pub(crate) fn acknowledged_by(&self, peer: u64, incarnation: &Incarnation) -> Option<Place> {
        self.acknowledged().get(&peer).filter(|(known, _)| known == incarnation).map(|(_, place)| *place)
    }

    fn acknowledged(&self) -> MutexGuard<'_, BTreeMap<u64, (Incarnation, Place)>> {
        self.inner.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This broker's log lost its end: the next start begins a new life.
    pub(crate) async fn lost(&self, reason: String) {
        let (disk, noted) = (self.inner.disk.clone(), reason.clone());
        if let Err(error) = blocking(move || disk.note_loss(&noted)).await {
            tracing::error!(%error, "the loss cannot be noted on disk");
        }
        self.halt(Halt::LogLost(reason));
    }

    /// Ends this broker's part in the group. The first reason stays.
    pub(crate) fn halt(&self, halt: Halt) {
        self.inner.halt.send_if_modified(|now| {
            let first = now.is_none();
            if first {
                tracing::error!(reason = halt.reason(), "this broker stops");
                *now = Some(halt);
            }
            first
        });
    }

    /// Why it stopped, where it did.
    pub(crate) fn halted(&self) -> Option<Halt> {
        self.inner.halt.borrow().clone()
    }

    /// Waits until it stops.
    pub(crate) async fn until_halted(&self) -> Halt {
        let mut halt = self.inner.halt.subscribe();
        match halt.wait_for(Option::is_some).await {
            Ok(halt) => halt.clone().unwrap_or_else(|| Halt::Stopped("it ended".to_owned())),
            // The sender lives in this very object.
            Err(_) => std::future::pending().await,
        }
    }
}

async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, StorageError> {
    tokio::task::spawn_blocking(f).await.map_err(|error| StorageError::Internal(error.to_string()))?
}
