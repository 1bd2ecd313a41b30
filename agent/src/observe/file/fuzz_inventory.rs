//! Fuzzes inventory files.

use std::path::Path;

use comity_fuzz::fuzz;

use super::{SAMPLE_INVENTORY, parse};
use crate::observe::{LocalReserve, TEST_SALT};

#[test]
fn inventory_files() {
    // Most of the sample is comments, which take time and lead nowhere.
    let content = SAMPLE_INVENTORY.lines().filter(|line| !line.trim_start().starts_with('#'));
    let without_comments = content.collect::<Vec<_>>().join("\n");
    fuzz!("inventory", vec![without_comments.into_bytes()], |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let read = parse(Path::new("inventory.yaml"), text, &TEST_SALT, &LocalReserve::default());
        // The mistakes are shown.
        read.map_err(|error| error.to_string()).is_ok()
    });
}
