//! Records how far the log has reached, in a file beside it: a log that ends earlier has lost its end.
//!
//! The record lags behind the log, so that it costs no fsync per entry.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use comity_runtime::atomic_file;
use serde::{Deserialize, Serialize};

use crate::storage::storage_error::StorageError;

pub(super) const REACHED_FILE: &str = "reached";
const MAX_REACHED_BYTES: u64 = 4_096;

/// A place in the log: term and index, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct LogPosition {
    pub(crate) term: u64,
    pub(crate) index: u64,
}

/// The record. Clones share it. Changes block for one fsync.
#[derive(Clone)]
pub(crate) struct Reached {
    path: PathBuf,
    place: Arc<Mutex<Option<LogPosition>>>,
}

impl Reached {
    /// Reads the record; an unreadable one counts as none, because it proves no loss.
    pub(super) fn open(data: &Path) -> Self {
        let path = data.join(REACHED_FILE);
        let place = atomic_file::read_bounded(&path, MAX_REACHED_BYTES).ok().and_then(|bytes| parse(&bytes));
        Self { path, place: Arc::new(Mutex::new(place)) }
    }

    fn place(&self) -> MutexGuard<'_, Option<LogPosition>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self) -> Option<LogPosition> {
        *self.place()
    }

    /// Records that the log is on disk up to `place`.
    pub(crate) fn advance(&self, place: LogPosition) -> Result<(), StorageError> {
        let mut known = self.place();
        if *known < Some(place) { self.write(&mut known, Some(place)) } else { Ok(()) }
    }

    /// Call before the log is truncated after `place`.
    pub(super) fn cut(&self, place: Option<LogPosition>) -> Result<(), StorageError> {
        let mut known = self.place();
        if *known > place { self.write(&mut known, place) } else { Ok(()) }
    }

    fn write(&self, known: &mut Option<LogPosition>, place: Option<LogPosition>) -> Result<(), StorageError> {
        let text = serde_json::to_vec(&place).map_err(|error| StorageError::Internal(error.to_string()))?;
        atomic_file::write(&self.path, &text, atomic_file::PRIVATE)?;
        *known = place;
        Ok(())
    }
}

pub(super) fn parse(bytes: &[u8]) -> Option<LogPosition> {
    serde_json::from_slice(bytes).unwrap_or_default()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn it_advances_is_cut_and_stays_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let at = |term, index| LogPosition { term, index };
        let reached = Reached::open(dir.path());
        assert_eq!(reached.get(), None);
        reached.advance(at(2, 10)).unwrap();
        reached.advance(at(1, 90)).unwrap();
        assert_eq!(Reached::open(dir.path()).get(), Some(at(2, 10)));
        reached.cut(Some(at(2, 12))).unwrap();
        assert_eq!(reached.get(), Some(at(2, 10)));
        reached.cut(Some(at(2, 4))).unwrap();
        assert_eq!(Reached::open(dir.path()).get(), Some(at(2, 4)));
        reached.cut(None).unwrap();
        assert_eq!(Reached::open(dir.path()).get(), None);
    }
}
