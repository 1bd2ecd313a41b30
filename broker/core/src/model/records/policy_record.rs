//! The policy bundle in force. The state replicates its sources, and each replica compiles them.

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_policy::{Bundle, BundleSource, RemovedDocuments};
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
    /// Who signed the commits that brought it into force, for people; empty if they were not pulled.
    pub signed_by: BTreeSet<String>,
    /// What documents that it lacks say about leases in force that they permitted; at most four for each lease.
    pub removed: RemovedDocuments,
}

#[derive(Serialize)]
struct ToStore<'a> {
    source: &'a BundleSource,
    applied_at: Timestamp,
    applied_by: &'a str,
    #[serde(skip_serializing_if = "is_unsigned")]
    signed_by: &'a BTreeSet<String>,
    #[serde(skip_serializing_if = "is_none_removed")]
    removed: &'a RemovedDocuments,
}

fn is_unsigned(signed_by: &&BTreeSet<String>) -> bool {
    signed_by.is_empty()
}

fn is_none_removed(removed: &&RemovedDocuments) -> bool {
    removed.is_empty()
}

#[derive(Deserialize)]
struct Stored {
    source: BundleSource,
    applied_at: Timestamp,
    applied_by: String,
    #[serde(default)]
    signed_by: BTreeSet<String>,
    #[serde(default)]
    removed: RemovedDocuments,
}

impl Serialize for PolicyRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { bundle: _, source, applied_at, applied_by, signed_by, removed } = self;
        ToStore { source, applied_at: *applied_at, applied_by, signed_by, removed }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PolicyRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Stored { source, applied_at, applied_by, signed_by, removed } = Stored::deserialize(deserializer)?;
        let bundle = Bundle::compile_replicated(&source).map_err(|problems| {
            serde::de::Error::custom(format!("stored policy bundle does not compile: {} problems", problems.len()))
        })?;
        Ok(Self { bundle: Arc::new(bundle), source: Arc::new(source), applied_at, applied_by, signed_by, removed })
    }
}
