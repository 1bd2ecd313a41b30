//! Fuzzes snapshot files, and what is inside of them. Their checksum is made for each input: edits of the rest would never
//! get past it.

use std::io::Cursor;
use std::path::Path;

use comity_core::State;
use comity_core::snapshot;
use comity_fuzz::fuzz;
use serde_json::Value;
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

/// The state with one row in each table: large inputs take long, and the others teach nothing new.
fn one_of_each(state: &[u8]) -> Value {
    let mut small: Value = serde_json::from_slice(state).expect("JSON");
    let tables = small["state"].as_object().expect("tables").keys().cloned().collect::<Vec<_>>();
    for table in tables {
        let rows: Vec<String> =
            small["state"][&table].as_object().into_iter().flat_map(|rows| rows.keys().cloned()).collect();
        for row in rows {
            let mut smaller = small.clone();
            let left = smaller["state"][&table].as_object_mut().expect("a table");
            left.remove(&row);
            if !left.is_empty() && snapshot::decode(smaller.to_string().as_bytes()).is_ok() {
                small = smaller;
            }
        }
    }
    small
}

#[test]
fn states_in_snapshots() {
    let small = one_of_each(STATE);
    // Most of the time goes into the policy, which has a door of its own.
    let mut without_policy = small.clone();
    without_policy["state"]["policy"] = Value::Null;
    let valid = [small, without_policy].map(|state| state.to_string().into_bytes()).to_vec();
    fuzz!("state", valid, |bytes: &[u8]| {
        let Ok(state) = snapshot::read(bytes).map_err(|error| error.to_string()) else { return false };
        let written = snapshot::encode(&state).expect("written");
        let again = snapshot::decode(&written).expect("a state that was read can be written, and read again");
        assert_eq!(snapshot::encode(&again).expect("written"), written, "nothing is lost");
        true
    });
}
