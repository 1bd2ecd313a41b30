//! The state directory: it must be writable, because an identity that cannot be stored is lost, and private.

use std::path::Path;

use comity_runtime::checks::Check;
use comity_runtime::{atomic_file, private_files};

use crate::app::secret_files;

const STATE_CHECK: &str = "state directory";
const WRITE_TEST: &str = "writable";

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
            "run as the user that owns the directory, or give another one with --state DIR",
        )
    };
    if !state.exists() {
        if missing == MissingDirectory::Leave {
            return Check::ok(STATE_CHECK, format!("{} does not exist yet", state.display()));
        }
        if let Err(error) = atomic_file::create_private_dir(state) {
            return refused(error.to_string());
        }
    }
    for secret in secret_files(state) {
        if let Err(error) = private_files::check(&secret) {
            return Check::failed(STATE_CHECK, error.to_string(), "run the chmod command");
        }
    }
    let mark = state.join(WRITE_TEST);
    if let Err(error) = atomic_file::write(&mark, b"", atomic_file::PRIVATE) {
        return refused(error.to_string());
    }
    // The next check overwrites a file that is left.
    let _ = std::fs::remove_file(&mark);
    Check::ok(STATE_CHECK, state.display().to_string())
}
