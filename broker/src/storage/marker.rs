//! The file that names the broker, the incarnation and the group of a data directory.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use comity_runtime::atomic_file;
use serde::{Deserialize, Serialize};

use crate::replication::identity::{GroupId, Incarnation, StartId};
use crate::storage::storage_error::StorageError;

/// Version of the layout of the data directory.
const DATA_DIR_FORMAT: u64 = 1;
pub(super) const MARKER_FILE: &str = "format";
const MAX_MARKER_BYTES: u64 = 64 << 10;
/// Starts that this broker remembers. A peer that was down for more of them takes the next one for the start of an old
/// copy, and this broker catches up as after a loss.
const MAX_STARTS: usize = 256;
const PRODUCT: &str = "comity-broker";

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Marker {
    product: String,
    format: u64,
    broker: u64,
    incarnation: Incarnation,
    /// `None` until a leader first wrote to this disk.
    pub(super) group: Option<GroupId>,
    /// Why the log must not be used, once it is known to be incomplete.
    pub(super) lost: Option<String>,
    /// The last starts of the broker in this life, the newest last.
    starts: Vec<StartId>,
    /// Groups that this one was recovered from.
    pub(super) replaces: Vec<GroupId>,
}

#[derive(Deserialize)]
struct MarkerHead {
    product: String,
    format: u64,
}

impl Marker {
    /// A marker with a new incarnation.
    pub(super) fn fresh(broker: u64, group: Option<GroupId>) -> Self {
        let product = PRODUCT.to_owned();
        Self {
            product,
            format: DATA_DIR_FORMAT,
            broker,
            incarnation: Incarnation::draw(),
            group,
            lost: None,
            starts: Vec::new(),
            replaces: Vec::new(),
        }
    }

    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation.clone()
    }

    /// One more start of the process begins.
    pub(super) fn begin_start(&mut self) {
        self.starts.push(StartId::draw());
        let surplus = self.starts.len().saturating_sub(MAX_STARTS);
        self.starts.drain(..surplus);
    }

    /// Reads and checks the marker; `None` if there is no file.
    pub(super) fn read(data: &Path, id: u64) -> Result<Option<Self>, StorageError> {
        let path = data.join(MARKER_FILE);
        let text = match atomic_file::read_bounded(&path, MAX_MARKER_BYTES) {
            Ok(text) => text,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Self::parse(path, &text, id).map(Some)
    }

    /// Reads and checks the marker's text; `path` is for the errors only.
    fn parse(path: PathBuf, text: &[u8], id: u64) -> Result<Self, StorageError> {
        let damaged = |error| StorageError::damaged(&path, error);
        // A later format may have other fields, so these two are read first.
        let head: MarkerHead = serde_json::from_slice(text).map_err(damaged)?;
        if head.product != PRODUCT {
            return Err(StorageError::damaged(path, format!("it is of {:?}", head.product)));
        }
        if head.format > DATA_DIR_FORMAT {
            return Err(StorageError::FromTheFuture { path, found: head.format, known: DATA_DIR_FORMAT });
        }
        let marker: Self = serde_json::from_slice(text).map_err(damaged)?;
        if marker.broker != id {
            return Err(StorageError::OtherBroker { path, found: marker.broker, wanted: id });
        }
        Ok(marker)
    }

    pub(super) fn write(&self, data: &Path) -> Result<(), StorageError> {
        let text = serde_json::to_vec(self).map_err(|error| StorageError::Internal(error.to_string()))?;
        Ok(atomic_file::write(&data.join(MARKER_FILE), &text, atomic_file::PRIVATE)?)
    }
}

/// Identity of a disk. Clones share it. Changes block for one fsync.
#[derive(Clone)]
pub(crate) struct DiskIdentity {
    data: PathBuf,
    marker: Arc<Mutex<Marker>>,
}

impl DiskIdentity {
    pub(super) fn new(data: &Path, marker: Marker) -> Self {
        Self { data: data.to_owned(), marker: Arc::new(Mutex::new(marker)) }
    }

    /// For a client without a disk; must not be changed.
    pub(crate) fn without_disk(id: u64) -> Self {
        Self::new(Path::new("/nonexistent"), Marker::fresh(id, None))
    }

    fn marker(&self) -> MutexGuard<'_, Marker> {
        self.marker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Current incarnation of the disk.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.marker().incarnation.clone()
    }

    /// Group of the disk, if any.
    pub(crate) fn group(&self) -> Option<GroupId> {
        self.marker().group.clone()
    }

    /// The last starts of the broker in this incarnation, the newest last.
    pub(crate) fn starts(&self) -> Vec<StartId> {
        self.marker().starts.clone()
    }

    /// Groups that this disk's group was recovered from.
    pub(crate) fn replaces(&self) -> Vec<GroupId> {
        self.marker().replaces.clone()
    }

    /// Assigns the disk to `group`.
    pub(crate) fn adopt(&self, group: GroupId) -> Result<(), StorageError> {
        self.change(|marker| marker.group = Some(group))
    }

    /// Marks the log as unusable: the next start begins a new incarnation.
    pub(crate) fn note_loss(&self, reason: &str) -> Result<(), StorageError> {
        self.change(|marker| marker.lost = Some(reason.to_owned()))
    }

    fn change(&self, change: impl FnOnce(&mut Marker)) -> Result<(), StorageError> {
        let mut marker = self.marker();
        let mut next = marker.clone();
        change(&mut next);
        next.write(&self.data)?;
        *marker = next;
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;
    use crate::storage::{peer_starts, reached};

    #[test]
    fn small_files_of_the_data_directory() {
        let mut marker = Marker::fresh(1, Some(GroupId::draw()));
        marker.begin_start();
        marker.lost = Some("the log ends before a snapshot".to_owned());
        marker.replaces.push(GroupId::draw());
        let peers = serde_json::json!({ "2": { "incarnation": Incarnation::draw(), "start": StartId::draw() } });
        let valid = vec![
            serde_json::to_vec(&marker).unwrap(),
            peers.to_string().into_bytes(),
            br#"{"term": 3, "index": 7}"#.to_vec(),
        ];
        fuzz!("broker_file", valid, |bytes: &[u8]| {
            let parse = |text: &[u8]| Marker::parse("data/format".into(), text, 1);
            let is_marker = match parse(bytes) {
                Ok(mut marker) => {
                    marker.begin_start();
                    assert!(marker.starts.len() <= MAX_STARTS, "{} starts are kept", marker.starts.len());
                    let written = serde_json::to_vec(&marker).expect("written");
                    let again = parse(&written).expect("a marker that was read can be written, and read again");
                    assert_eq!(serde_json::to_vec(&again).expect("written"), written, "nothing is lost");
                    true
                }
                Err(error) => {
                    assert!(error.to_string().contains("data/format"), "{error}");
                    false
                }
            };
            is_marker || reached::parse(bytes).is_some() || !peer_starts::parse(bytes).is_empty()
        });
    }

    #[test]
    fn a_directory_belongs_to_one_broker() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Marker::read(dir.path(), 1).unwrap().is_none());
        Marker::fresh(1, None).write(dir.path()).unwrap();
        assert!(Marker::read(dir.path(), 1).unwrap().is_some());
        let error = Marker::read(dir.path(), 2).err().unwrap().to_string();
        assert!(error.contains("belongs to broker 1, not to broker 2"), "{error}");
    }

    #[test]
    fn a_group_is_adopted_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let marker = Marker::fresh(1, None);
        let incarnation = marker.incarnation.clone();
        let disk = DiskIdentity::new(dir.path(), marker);
        let group = GroupId::draw();
        disk.adopt(group.clone()).unwrap();
        let read = Marker::read(dir.path(), 1).unwrap().unwrap();
        assert_eq!((read.incarnation, read.group), (incarnation, Some(group)));
    }

    #[test]
    fn the_last_starts_are_remembered() {
        let mut marker = Marker::fresh(1, None);
        (0..MAX_STARTS + 3).for_each(|_| marker.begin_start());
        let newest = marker.starts.last().cloned();
        assert_eq!(marker.starts.len(), MAX_STARTS);
        marker.begin_start();
        assert_eq!(marker.starts.iter().rev().nth(1).cloned(), newest);
        let dir = tempfile::tempdir().unwrap();
        marker.write(dir.path()).unwrap();
        assert_eq!(Marker::read(dir.path(), 1).unwrap().unwrap().starts, marker.starts);
    }

    #[test]
    fn later_formats_and_nonsense_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(MARKER_FILE);
        let later = br#"{"product":"comity-broker","format":2,"broker":1,"incarnation":"a","group":null,"lost":null}"#;
        std::fs::write(&path, later).unwrap();
        assert!(matches!(Marker::read(dir.path(), 1), Err(StorageError::FromTheFuture { found: 2, .. })));
        std::fs::write(&path, b"{}").unwrap();
        assert!(matches!(Marker::read(dir.path(), 1), Err(StorageError::Damaged { .. })));
    }
}
