//! The last start of each peer that this broker heard of, on disk.
//!
//! A copy of a data directory that is put back forgets the starts that came after it. The peers remember them: see
//! [`PeerStarts::meet`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use comity_runtime::atomic_file;
use serde::{Deserialize, Serialize};

use crate::replication::identity::{Incarnation, StartId};
use crate::storage::storage_error::StorageError;

pub(super) const PEERS_FILE: &str = "peers";
/// A group has had 1,024 brokers at most; each takes less than 150 bytes here.
const MAX_PEERS_BYTES: u64 = 1 << 20;

/// Clones share it. Calls block: each change is synced.
#[derive(Clone)]
pub(crate) struct PeerStarts {
    path: PathBuf,
    known: Arc<Mutex<BTreeMap<u64, Known>>>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    incarnation: Incarnation,
    start: StartId,
}

impl PeerStarts {
    /// Reads the file. An unreadable file proves nothing, and is replaced by the next write.
    pub(super) fn open(data: &Path) -> Self {
        let path = data.join(PEERS_FILE);
        let known = atomic_file::read_bounded(&path, MAX_PEERS_BYTES).map(|bytes| parse(&bytes)).unwrap_or_default();
        Self { path, known: Arc::new(Mutex::new(known)) }
    }

    /// Whether `starts`, the last starts of `peer` with the newest last, contain the last one known here. If so, the
    /// newest is on disk when this returns. A new incarnation of the peer has no known start.
    pub(crate) fn meet(&self, peer: u64, incarnation: &Incarnation, starts: &[StartId]) -> Result<bool, StorageError> {
        let Some(newest) = starts.last() else { return Ok(true) };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = known.get(&peer).filter(|it| it.incarnation == *incarnation);
        if before.is_some_and(|it| !starts.contains(&it.start)) {
            return Ok(false);
        }
        if before.is_some_and(|it| it.start == *newest) {
            return Ok(true);
        }
        let mut next = known.clone();
        next.insert(peer, Known { incarnation: incarnation.clone(), start: newest.clone() });
        let text = serde_json::to_vec(&next).map_err(|error| StorageError::Internal(error.to_string()))?;
        atomic_file::write(&self.path, &text, atomic_file::PRIVATE)?;
        *known = next;
        Ok(true)
    }
}

pub(super) fn parse(bytes: &[u8]) -> BTreeMap<u64, Known> {
    serde_json::from_slice(bytes).unwrap_or_default()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_forgot_a_start_is_known_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (life, [one, two, three]) = (Incarnation::draw(), [(); 3].map(|()| StartId::draw()));
        let meet = |starts: &[StartId]| PeerStarts::open(dir.path()).meet(2, &life, starts).unwrap();
        assert!(meet(std::slice::from_ref(&one)));
        assert!(meet(&[one.clone(), two.clone()]));
        assert!(meet(&[one.clone(), two.clone()]), "the same start may say hello again");
        assert!(!meet(&[one.clone(), three.clone()]), "a copy from before the second start");
        assert!(meet(&[one, two, three]), "what was refused is not noted");
    }

    #[test]
    fn another_life_begins_with_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let peers = PeerStarts::open(dir.path());
        assert!(peers.meet(2, &Incarnation::draw(), &[StartId::draw()]).unwrap());
        assert!(peers.meet(2, &Incarnation::draw(), &[StartId::draw()]).unwrap());
        assert!(peers.meet(3, &Incarnation::draw(), &[]).unwrap());
    }
}
