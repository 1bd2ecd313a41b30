//! The source files of a bundle.

use serde::{Deserialize, Serialize};

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
}
