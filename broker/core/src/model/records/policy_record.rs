//! The policy bundle in force. The state replicates its sources, and each replica compiles them.

use std::sync::Arc;

use comity_policy::{Bundle, BundleSource};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::time::Timestamp;

/// The bundle in force. Equal sources compile to equal bundles, so the state stores only the sources.
#[derive(Clone, Debug)]
pub struct PolicyRecord {
    /// Compiled documents.
    pub bundle: Arc<Bundle>,
    /// Their sources: megabytes, which copies of the state share.
    pub source: Arc<BundleSource>,
    /// When it was applied.
    pub applied_at: Timestamp,
    /// SPIFFE id of the person or program that applied it.
    pub applied_by: String,
}

#[derive(Serialize)]
struct ToStore<'a> {
    source: &'a BundleSource,
    applied_at: Timestamp,
    applied_by: &'a str,
}

#[derive(Deserialize)]
struct Stored {
    source: BundleSource,
    applied_at: Timestamp,
    applied_by: String,
}

impl Serialize for PolicyRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { bundle: _, source, applied_at, applied_by } = self;
        ToStore { source, applied_at: *applied_at, applied_by }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PolicyRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Stored { source, applied_at, applied_by } = Stored::deserialize(deserializer)?;
        let bundle = Bundle::compile_replicated(&source).map_err(|problems| {
            serde::de::Error::custom(format!("stored policy bundle does not compile: {} problems", problems.len()))
        })?;
        Ok(Self { bundle: Arc::new(bundle), source: Arc::new(source), applied_at, applied_by })
    }
}
