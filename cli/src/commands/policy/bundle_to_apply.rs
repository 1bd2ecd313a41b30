//! A bundle that is to be planned or applied.

use comity_policy::SourceFile;
use comity_proto::v1;

/// A bundle, and how to apply it.
#[derive(Clone)]
pub(crate) struct BundleToApply {
    /// Its files.
    pub(crate) files: Vec<SourceFile>,
    /// Git commit to record.
    pub(crate) commit: Option<String>,
    /// Whether it may leave the federation or the caller without a maintainer.
    pub(crate) force: bool,
    /// Hash that the bundle in force must have, empty for none; `None` replaces any.
    pub(crate) expected_hash: Option<String>,
}

impl BundleToApply {
    /// The bundle as a message, its commit, and how to apply it: `force` and the expected hash.
    pub(super) fn into_message(self) -> (v1::PolicyBundle, Option<String>, bool, Option<String>) {
        let Self { files, commit, force, expected_hash } = self;
        let files = files.into_iter().map(|file| v1::PolicyFile { path: file.path, text: file.text }).collect();
        let message = v1::PolicyBundle { files, commit: commit.clone().unwrap_or_default() };
        (message, commit, force, expected_hash)
    }
}
