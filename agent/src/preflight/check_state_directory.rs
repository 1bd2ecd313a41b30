//! The state directory: it must be writable, because an identity that cannot be stored is lost, and private.

use std::path::Path;

use comity_runtime::atomic_file;
use comity_runtime::checks::Check;

use crate::app::check_state_files;

const STATE_CHECK: &str = "state directory";
/// Room that keys, certificates and the first records need.
const ROOM_BYTES: usize = 256 << 10;

/// What to do about a directory that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingDirectory {
    Make,
    Leave,
}

pub(super) fn check(state: &Path, missing: MissingDirectory) -> Check {
    let refused = |reason: String| {
        Check::failed(
            STATE_CHECK,
            reason,
            "run as the user that owns the directory, free the disk, or give another directory with --state DIR",
        )
    };
    if !state.exists() && missing == MissingDirectory::Leave {
        return Check::ok(STATE_CHECK, format!("{} does not exist yet", state.display()));
    }
    if let Err(error) = check_state_files(state) {
        return Check::failed(STATE_CHECK, error.to_string(), "run the command that it names");
    }
    if let Err(error) = atomic_file::check_room(state, ROOM_BYTES) {
        return refused(error.to_string());
    }
    Check::ok(STATE_CHECK, state.display().to_string())
}
