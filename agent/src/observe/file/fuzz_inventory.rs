//! Fuzzes inventory files.

use std::path::Path;

use comity_fuzz::fuzz;

use super::{SAMPLE_INVENTORY, parse};
use crate::observe::{LocalReserve, TEST_SALT};

#[test]
fn inventory_files() {
    fuzz!("inventory", vec![SAMPLE_INVENTORY.as_bytes().to_vec()], |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let read = parse(Path::new("inventory.yaml"), text, &TEST_SALT, &LocalReserve::default());
        // The mistakes are shown.
        read.map_err(|error| error.to_string()).is_ok()
    });
}
