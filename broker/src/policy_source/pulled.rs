//! What a pull found.

use std::path::PathBuf;

use bytes::Bytes;
use comity_policy::SourceFile;
use comity_provenance::ObjectId;

use crate::policy_source::object_database::ObjectDatabase;
use crate::policy_source::oci::{ArtifactDigest, unpacked};
use crate::policy_source::pull_error::PullError;

/// What a pull found.
#[derive(Debug)]
pub(crate) enum Pulled {
    /// A branch.
    Branch(PulledBranch),
    /// A directory without Git.
    Directory(PathBuf),
    /// An artifact with documents.
    Documents(PulledDocuments),
}

/// An artifact with a folder.
#[derive(Debug)]
pub(crate) struct PulledDocuments {
    /// The artifact.
    pub(crate) artifact: ArtifactDigest,
    /// The folder in an archive.
    pub(super) archive: Bytes,
}

impl PulledDocuments {
    /// The documents in a folder of the artifact, sorted by path; empty for the whole artifact.
    ///
    /// # Errors
    /// [`PullError`] if the archive exceeds a bound, or cannot be read.
    pub(crate) fn files(&self, folder: &str) -> Result<Vec<SourceFile>, PullError> {
        unpacked(&self.archive, folder)
    }
}

/// The head of a branch.
#[derive(Debug)]
pub(crate) struct PulledBranch {
    /// The head.
    pub(crate) head: ObjectId,
    /// The artifact that has the commits, if they come from a registry.
    pub(crate) artifact: Option<ArtifactDigest>,
    /// The objects, with the head and all commits before it.
    pub(crate) objects: ObjectDatabase,
}
