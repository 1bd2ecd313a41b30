//! Fuzzes snapshot files, and what is inside of them. Their checksum is made for each input: edits of the rest would never
//! get past it.

use std::io::Cursor;
use std::path::Path;

use comity_core::State;
use comity_core::snapshot;
use comity_fuzz::fuzz;
use sha2::{Digest as _, Sha256};

use super::replica::Replicated;
use super::snapshot_file::{DIGEST_BYTES, read, write};

/// A state of some size, as a release wrote it.
const STATE: &[u8] = include_bytes!("../../core/tests/data/snapshot-1.json");

#[test]
fn snapshot_files() {
    let mut file = Vec::new();
    write(&Replicated::new(State::default(), None, Default::default()), &mut file).expect("written");
    file.truncate(file.len() - DIGEST_BYTES);
    fuzz!("snapshot_file", vec![file], |content: &[u8]| {
        let _ = read(Path::new("snapshot"), Cursor::new(content));
        let file = [content, &Sha256::digest(content)[..]].concat();
        read(Path::new("snapshot"), Cursor::new(file)).map_err(|error| error.to_string()).is_ok()
    });
}

#[test]
fn states_in_snapshots() {
    let mut state = Vec::new();
    snapshot::write(&snapshot::read(STATE).expect("a state"), &mut state).expect("written");
    fuzz!("state", vec![state], |bytes: &[u8]| snapshot::read(bytes).map_err(|error| error.to_string()).is_ok());
}
