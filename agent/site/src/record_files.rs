//! Folders of records, each a JSON file of its own.

use std::path::Path;

use comity_runtime::atomic_file;
use serde::de::DeserializeOwned;

/// Reads all records of a folder, which is made if there is none. A record that cannot be read is logged and passed over:
/// the others, and the leases that they belong to, go on. Blocks.
///
/// # Errors
/// A sentence, if the folder cannot be made or listed.
pub(crate) fn read_all<T: DeserializeOwned>(folder: &Path, max_bytes: u64) -> Result<Vec<T>, String> {
    atomic_file::create_private_dir(folder).map_err(|error| error.to_string())?;
    let mut records = Vec::new();
    for file in std::fs::read_dir(folder).map_err(|error| error.to_string())? {
        let path = file.map_err(|error| error.to_string())?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let bytes = atomic_file::read_bounded(&path, max_bytes).map_err(|error| error.to_string());
        // The parser's error might quote a Secret.
        let read =
            bytes.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|_| "it is no such record".to_owned()));
        match read {
            Ok(record) => records.push(record),
            Err(error) => tracing::error!(path = %path.display(), error, "a record cannot be read, and is passed over"),
        }
    }
    Ok(records)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::read_all;

    #[test]
    fn one_damaged_record_does_not_hide_the_others() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("a.json", "1"), ("b.json", "{"), ("c.json", "22222"), ("d.txt", "3")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(read_all::<u32>(folder.path(), 4).unwrap(), [1]);
    }
}
