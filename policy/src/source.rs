//! The source files of a bundle.

use serde::{Deserialize, Serialize};

use crate::calendar::zones::Zones;

/// One policy file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SourceFile {
    /// Path within the bundle, with `/` between folders.
    pub path: String,
    /// Content.
    pub text: String,
}

/// All files of a bundle. Brokers replicate this, and each replica compiles it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BundleSource {
    /// The files, in any order.
    pub files: Vec<SourceFile>,
    /// Git commit of the files, if known.
    #[serde(default)]
    pub commit: Option<String>,
    /// The offsets of the time zones that the files name. [`Bundle::compile`](crate::Bundle::compile) adds them.
    #[serde(default)]
    pub zones: Zones,
}

impl BundleSource {
    /// Files that come from no Git commit.
    #[must_use]
    pub fn of_files(files: Vec<SourceFile>) -> Self {
        Self { files, ..Self::default() }
    }
}
