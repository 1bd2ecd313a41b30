//! The file that says whose directory this is.

use std::path::Path;

use comity_runtime::atomic_file;
use serde::{Deserialize, Serialize};

use super::error::StorageError;

/// Version of the layout of the data directory.
const FORMAT: u64 = 1;
const FILE: &str = "format";
const MAX_BYTES: u64 = 4_096;

#[derive(Serialize, Deserialize)]
struct Marker {
    product: String,
    format: u64,
    broker: u64,
}

const PRODUCT: &str = "comity-broker";

/// Checks the marker; false where there is none yet.
pub(super) fn check(data: &Path, id: u64) -> Result<bool, StorageError> {
    let path = data.join(FILE);
    let text = match atomic_file::read_bounded(&path, MAX_BYTES) {
        Ok(text) => text,
        Err(error) if error.is_not_found() => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let marker: Marker = serde_json::from_slice(&text).map_err(|error| StorageError::damaged(&path, error))?;
    if marker.product != PRODUCT {
        return Err(StorageError::damaged(path, format!("it is of {:?}", marker.product)));
    }
    if marker.format > FORMAT {
        return Err(StorageError::FromTheFuture { path, found: marker.format, known: FORMAT });
    }
    if marker.broker != id {
        return Err(StorageError::OtherBroker { path, found: marker.broker, wanted: id });
    }
    Ok(true)
}

/// Marks a directory whose log was just made. From now on a log that is not there is a log that was lost.
pub(super) fn write(data: &Path, id: u64) -> Result<(), StorageError> {
    let marker = Marker { product: PRODUCT.to_owned(), format: FORMAT, broker: id };
    let text = serde_json::to_vec(&marker).map_err(|error| StorageError::Internal(error.to_string()))?;
    Ok(atomic_file::write(&data.join(FILE), &text, atomic_file::PRIVATE)?)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_directory_belongs_to_one_broker() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!check(dir.path(), 1).unwrap());
        write(dir.path(), 1).unwrap();
        assert!(check(dir.path(), 1).unwrap());
        let error = check(dir.path(), 2).unwrap_err().to_string();
        assert!(error.contains("belongs to broker 1, not to broker 2"), "{error}");
    }

    #[test]
    fn later_formats_and_nonsense_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        std::fs::write(&path, br#"{"product":"comity-broker","format":2,"broker":1}"#).unwrap();
        assert!(matches!(check(dir.path(), 1), Err(StorageError::FromTheFuture { found: 2, .. })));
        std::fs::write(&path, b"{}").unwrap();
        assert!(matches!(check(dir.path(), 1), Err(StorageError::Damaged { .. })));
    }
}
