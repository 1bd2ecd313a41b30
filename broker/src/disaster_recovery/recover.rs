//! `comity-broker recover`: founds a new group of one broker on a surviving copy of the log.

use std::fs;
use std::path::{Path, PathBuf};

use comity_core::Timestamp;
use comity_core::broker_record::BrokerRole;
use comity_runtime::ca::CertificateAuthority;

use crate::config::{Settings, ca_dir};
use crate::disaster_recovery::rebuild::{self, RebuildError};
use crate::provision::ensure_identity;
use crate::replication::identity::GroupId;
use crate::replication::member::MemberAddress;
use crate::storage::{self, StorageError};

/// Why a recovery was refused.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// A check shared with `rebuild`.
    #[error(transparent)]
    Checked(#[from] RebuildError),
    /// The copy.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The old group still works.
    #[error(
        "broker {leader} leads a majority of the brokers: nothing has to be recovered; run `comity-broker rebuild` on \
        the broker that is damaged, or give --force if that group is to be abandoned"
    )]
    GroupLives {
        /// Number of its leader.
        leader: u64,
    },
    /// The broker's address is unknown.
    #[error("neither broker.json nor the copy says where broker {0} is; add it to `members` in broker.json")]
    NoAddress(u64),
    /// A file or directory cannot be copied.
    #[error("cannot copy {}: {source}", path.display())]
    Copy {
        /// File or directory.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

/// Contents of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopySummary {
    /// The broker whose copy it is.
    pub id: u64,
    /// Where it is.
    pub dir: PathBuf,
    /// Other copies in the same data directory, and why each is not used.
    pub others_found: Vec<(PathBuf, String)>,
    /// Its last log entry.
    pub last_index: u64,
    /// The term in which that was made.
    pub last_term: u64,
    /// Whether its group was itself recovered from a copy.
    pub is_recovered: bool,
    /// Entries at its end that may not be committed; recovery keeps them.
    pub uncertain: u64,
    /// Log time of its last entry.
    pub log_time: Timestamp,
    /// Live leases.
    pub leases: usize,
    /// Queued requests.
    pub queued: usize,
    /// Other brokers of the old group; each needs `rebuild` to join the new one.
    pub others: Vec<u64>,
}

/// Outcome of a recovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The new group.
    pub group: GroupId,
    /// Where the old log is kept.
    pub aside: Option<PathBuf>,
}

/// Whether to recover although the old group still has a leader with a majority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveGroup {
    /// Refuse.
    Refuse,
    /// Recover and abandon the old group.
    Abandon,
}

/// A copy that was read and can become a new group.
pub struct Recovery {
    from: PathBuf,
    settings: Settings,
    ca: CertificateAuthority,
    best: storage::BestCopy,
    address: MemberAddress,
}

impl Recovery {
    /// Reads the copy in the data directory `from` that reaches farthest.
    ///
    /// # Errors
    /// [`RecoverError`]; also if a leader with a majority answers, unless [`LiveGroup::Abandon`].
    pub async fn read(from: &Path, live_group: LiveGroup) -> Result<Self, RecoverError> {
        let settings = Settings::load(from).map_err(RebuildError::from)?;
        let ca = CertificateAuthority::load(&ca_dir(from)).map_err(RebuildError::from)?;
        let group_dir = from.join("group");
        rebuild::not_running(&group_dir)?;
        if live_group == LiveGroup::Refuse {
            let answers = rebuild::ask_members(&settings, &ca).await?;
            if let Some((leader, _)) = rebuild::leading(&answers) {
                return Err(RecoverError::GroupLives { leader });
            }
        }
        let id = settings.id;
        let read = tokio::task::spawn_blocking(move || storage::read_best(&group_dir, id)).await;
        let best = read.map_err(|error| StorageError::Internal(error.to_string())).flatten()?;
        let recorded =
            best.copy.state.brokers.get(&id).map(|record| MemberAddress {
                raft: record.raft_address.clone(),
                client: record.client_address.clone(),
            });
        let Some(address) = recorded.or_else(|| settings.members.get(&id).cloned()) else {
            return Err(RecoverError::NoAddress(id));
        };
        Ok(Self { from: from.to_owned(), settings, ca, best, address })
    }

    /// Summarizes the copy.
    #[must_use]
    pub fn summary(&self) -> CopySummary {
        let storage::BestCopy { dir, copy, others: others_found } = &self.best;
        let (state, end) = (&copy.state, copy.end());
        let others = state.brokers.iter().filter(|(id, it)| **id != self.settings.id && it.role != BrokerRole::Removed);
        CopySummary {
            id: self.settings.id,
            dir: dir.clone(),
            others_found: others_found.clone(),
            last_index: end.index,
            last_term: end.term,
            is_recovered: copy.is_recovered(),
            uncertain: end.index.saturating_sub(copy.committed.unwrap_or(0)),
            log_time: state.log_time,
            leases: state.live_leases().count(),
            queued: state.queued_len(),
            others: others.map(|(id, _)| *id).collect(),
        }
    }

    /// Replaces the copy by the new group; the copy is kept beside it.
    ///
    /// # Errors
    /// [`RecoverError`].
    pub async fn carry_out(self) -> Result<Recovered, RecoverError> {
        let Self { from, settings, ca, best, address } = self;
        ensure_identity(&ca, &settings, &from).map_err(RebuildError::from)?;
        let fresh = from.join(format!("group.new-{}", std::process::id()));
        let made = {
            let (old, fresh) = (from.join("group"), fresh.clone());
            let found = move || storage::found_on(best.copy, (&old, &fresh), settings.id, address);
            tokio::task::spawn_blocking(found).await
        };
        let group = made.map_err(|error| StorageError::Internal(error.to_string())).flatten()?;
        let group_dir = from.join("group");
        let aside = rebuild::set_aside(&group_dir)?;
        fs::rename(&fresh, &group_dir).map_err(|source| RecoverError::Copy { path: fresh, source })?;
        Ok(Recovered { group, aside })
    }
}
