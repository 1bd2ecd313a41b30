//! Failures because of a bundle's files.

use std::path::Path;

use comity_policy::ReadError;

use crate::failure::Failure;

/// The directory cannot be read as a bundle.
pub(super) fn unreadable(dir: &Path, error: &ReadError) -> Failure {
    Failure::usage(error.to_string())
        .field("<DIR>", dir.display())
        .remedy("give the directory that has the Federation document")
}

/// The bundle has problems, which were printed.
pub(super) fn bad_bundle(problems: usize) -> Failure {
    Failure::refused("bad-policy", format!("the bundle is invalid; problems found: {problems}"))
        .remedy("fix the problems listed; nothing was applied")
}
