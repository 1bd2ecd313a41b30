//! Whether this broker may vote, append, or must stop.
//!
//! A broker votes only if it is admitted and confirmed. Admitted: the membership in its own log names the current
//! incarnation of its disk; a disk that lost its log gets a new incarnation, which the leader must admit. Confirmed:
//! since its start, a majority of the voters (itself included) has found nothing that its log lacks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::replication::identity::{GroupId, Incarnation, StartId};
use crate::storage::{DiskIdentity, LogPosition, PeerStarts, StorageError};

/// Why this broker must stop; the process logs the sentence and exits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Halt {
    /// The log lost acknowledged entries. After a restart it begins a new incarnation and catches up.
    LogLost(String),
    /// An operator must act.
    Stopped(String),
}

impl Halt {
    /// A broker that was removed cannot go on.
    pub(crate) fn removed(me: u64) -> Self {
        Self::Stopped(format!(
            "broker {me} was removed from its group; its number is never used again: make a broker with a new number by \
             `comity-broker add-identity`, and add it by `comity raft add-learner`"
        ))
    }

    /// Another group was recovered from a copy of this broker's group, so this broker must stop.
    pub(crate) fn replaced_by(me: u64, peer: u64) -> Self {
        Self::Stopped(format!(
            "broker {me} belongs to a group that was replaced: the group of broker {peer} was recovered from a copy of it, \
             and only one of the two may go on; run `comity-broker rebuild --data DIR` here, or stop the brokers of the \
             other group"
        ))
    }

    /// The reason, as one sentence.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::LogLost(reason) | Self::Stopped(reason) => reason,
        }
    }
}

/// Whether this broker may vote and lead in its group. Clones share it.
#[derive(Clone)]
pub(crate) struct Eligibility {
    inner: Arc<EligibilityInner>,
}

struct EligibilityInner {
    disk: DiskIdentity,
    peer_starts: Option<PeerStarts>,
    /// Whether `admitted` was ever set.
    looked: AtomicBool,
    admitted: AtomicBool,
    confirmed: AtomicBool,
    halt: watch::Sender<Option<Halt>>,
    /// Log position that each peer acknowledged, with its incarnation.
    acknowledged: Mutex<BTreeMap<u64, (Incarnation, LogPosition)>>,
}

impl Eligibility {
    /// Not confirmed yet.
    pub(crate) fn new(disk: DiskIdentity, peer_starts: Option<PeerStarts>) -> Self {
        Self {
            inner: Arc::new(EligibilityInner {
                disk,
                peer_starts,
                looked: AtomicBool::new(false),
                admitted: AtomicBool::new(false),
                confirmed: AtomicBool::new(false),
                halt: watch::Sender::new(None),
                acknowledged: Mutex::new(BTreeMap::new()),
            }),
        }
    }

    /// For a client without a disk, which only queries.
    pub(crate) fn without_disk(id: u64) -> Self {
        let eligibility = Self::new(DiskIdentity::without_disk(id), None);
        eligibility.confirm();
        eligibility
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.inner.disk.incarnation()
    }

    pub(crate) fn group(&self) -> Option<GroupId> {
        self.inner.disk.group()
    }

    /// Whether this broker's group was recovered from `other`.
    pub(crate) fn replaces(&self, other: &GroupId) -> bool {
        self.inner.disk.replaces().contains(other)
    }

    /// Groups that this broker's group was recovered from.
    pub(crate) fn replaced(&self) -> Vec<GroupId> {
        self.inner.disk.replaces()
    }

    /// The last starts of this broker, the newest last.
    pub(crate) fn starts(&self) -> Vec<StartId> {
        self.inner.disk.starts()
    }

    /// Whether `peer` remembers the last start that this broker knows of it; see [`PeerStarts::meet`].
    pub(crate) async fn meet(
        &self,
        peer: u64,
        incarnation: Incarnation,
        starts: Vec<StartId>,
    ) -> Result<bool, StorageError> {
        let Some(known) = self.inner.peer_starts.clone() else { return Ok(true) };
        blocking(move || known.meet(peer, &incarnation, &starts)).await
    }

    /// Joins `group`; on disk when it returns.
    pub(crate) async fn adopt(&self, group: GroupId) -> Result<(), StorageError> {
        let disk = self.inner.disk.clone();
        blocking(move || disk.adopt(group)).await
    }

    /// Whether this broker may vote and stand for election.
    pub(crate) fn may_vote(&self) -> bool {
        self.inner.admitted.load(Ordering::Acquire) && self.inner.confirmed.load(Ordering::Acquire)
    }

    /// Whether entries may be appended: the log is confirmed whole, or this broker is not admitted yet.
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

    /// Records that the log of `peer` is on disk up to `place`.
    pub(crate) fn note_acknowledged(&self, peer: u64, incarnation: &Incarnation, place: LogPosition) {
        let mut all = self.acknowledged();
        match all.get_mut(&peer) {
            Some((known, at)) if known == incarnation => *at = place.max(*at),
            _ => _ = all.insert(peer, (incarnation.clone(), place)),
        }
    }

    /// Position that `peer` in this incarnation acknowledged to this broker since it started.
    pub(crate) fn acknowledged_by(&self, peer: u64, incarnation: &Incarnation) -> Option<LogPosition> {
        self.acknowledged().get(&peer).filter(|(known, _)| known == incarnation).map(|(_, place)| *place)
    }

    fn acknowledged(&self) -> MutexGuard<'_, BTreeMap<u64, (Incarnation, LogPosition)>> {
        self.inner.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Halts because the log lost its end; the next start begins a new incarnation.
    pub(crate) async fn lost(&self, reason: String) {
        let (disk, noted) = (self.inner.disk.clone(), reason.clone());
        if let Err(error) = blocking(move || disk.note_loss(&noted)).await {
            tracing::error!(%error, "the loss cannot be noted on disk");
        }
        self.halt(Halt::LogLost(reason));
    }

    /// Halts this broker. The first reason is kept.
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

    /// Why it halted, if it did.
    pub(crate) fn halted(&self) -> Option<Halt> {
        self.inner.halt.borrow().clone()
    }

    /// Waits until it halts.
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
