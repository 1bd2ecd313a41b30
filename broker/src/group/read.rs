//! Reads of the replicated state.

use std::time::Duration;

use comity_core::{State, snapshot};
use openraft::ReadPolicy;
use openraft::errors::RaftError;
use tokio::sync::watch;

use crate::group::group_error::Unavailable;
use crate::group::propose::Deadline;
use crate::group::{Group, Inner, Leadership};

/// Timeout of one answer of the leader, before looking for the leader again.
const READ_INDEX_TIMEOUT: Duration = Duration::from_secs(1);

/// Freshness of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Consistency {
    /// Includes everything acknowledged before the call.
    #[default]
    Linearizable,
    /// The state of this broker, which may lag; needs no leader.
    Stale,
}

impl Group {
    /// Runs `f` on the state. `f` must be quick, since no entry is applied meanwhile, and must not read again, not even
    /// [`log_now`](Self::log_now).
    ///
    /// # Errors
    /// [`Unavailable`] where a linearizable read is not confirmed within the deadline. Reads change nothing and are
    /// always safe to repeat.
    pub async fn read<T>(&self, consistency: Consistency, f: impl FnOnce(&State) -> T) -> Result<T, Unavailable> {
        if consistency == Consistency::Linearizable {
            self.catch_up().await?;
        }
        Ok(self.peek(f))
    }

    /// As [`read`](Self::read), on the state of this broker.
    pub fn peek<T>(&self, f: impl FnOnce(&State) -> T) -> T {
        self.inner.replica.read(|replicated| f(&replicated.state))
    }

    /// A copy of the state without derived data, and the index of its last entry; `None` if that entry is `known`.
    pub(crate) fn copy_after(&self, known: Option<u64>) -> Option<(u64, State)> {
        self.inner.replica.read(|replicated| {
            let entry = replicated.last_applied.map_or(0, |id| id.index);
            (known != Some(entry)).then(|| (entry, snapshot::copy(&replicated.state)))
        })
    }

    /// Waits until this broker has applied everything that was acknowledged before the call.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn catch_up(&self) -> Result<(), Unavailable> {
        let inner = &self.inner;
        let deadline = Deadline::within(inner.config.deadline);
        while deadline.left() > Duration::ZERO && !inner.is_out_of_patience(&deadline) {
            if let Some(reason) = inner.stop_reason() {
                return Err(Unavailable::Stopped { broker: inner.config.id, reason });
            }
            let leadership = *inner.leadership.borrow();
            let index = match leadership {
                Leadership::Leader { .. } => inner.read_index_here(deadline.left()).await?,
                Leadership::Follower { leader: Some(leader) } => inner.read_index_of(leader, deadline.left()).await,
                Leadership::Follower { leader: None } => None,
            };
            if let Some(index) = index {
                let applied = tokio::time::timeout(deadline.left(), inner.replica.applied(index)).await;
                applied.map_err(|_| Unavailable::ReadTimeout { waited: deadline.whole })?;
                inner.caught_up.send_if_modified(|caught_up| !std::mem::replace(caught_up, true));
                return Ok(());
            }
            inner.leadership_may_change(leadership, deadline.left()).await;
        }
        Err(match *inner.leadership.borrow() {
            Leadership::Follower { leader: None } => Unavailable::NoLeader { broker: inner.config.id },
            _ => Unavailable::ReadTimeout { waited: deadline.whole },
        })
    }

    /// As [`catch_up`](Self::catch_up), but only the first time since the start: until then, the state read from disk
    /// may lack what was acknowledged while this broker was down, such as revocations.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn catch_up_since_start(&self) -> Result<(), Unavailable> {
        if *self.inner.caught_up.borrow() { Ok(()) } else { self.catch_up().await }
    }

    /// Follows whether this broker has caught up with its group since its start.
    pub fn caught_up(&self) -> watch::Receiver<bool> {
        self.inner.caught_up.subscribe()
    }
}

impl Inner {
    async fn read_index_here(&self, timeout: Duration) -> Result<Option<u64>, Unavailable> {
        match tokio::time::timeout(timeout.min(READ_INDEX_TIMEOUT), self.raft.get_read_log_id(ReadPolicy::ReadIndex))
            .await
        {
            Ok(Ok((read, _applied))) => Ok(Some(read.log_id().index)),
            Ok(Err(RaftError::Fatal(error))) => {
                Err(Unavailable::Stopped { broker: self.config.id, reason: error.to_string() })
            }
            // This broker no longer leads, or no majority has answered yet.
            Ok(Err(RaftError::APIError(_))) | Err(_) => Ok(None),
        }
    }

    async fn read_index_of(&self, leader: u64, timeout: Duration) -> Option<u64> {
        let node = self.node_of(leader)?;
        let index = self.peers.read_index(leader, &node, timeout.min(READ_INDEX_TIMEOUT)).await.ok()?;
        // A leader knows all committed entries. One that knows fewer than this broker applied leads another log.
        (index >= self.replica.applied_index()).then_some(index)
    }
}
