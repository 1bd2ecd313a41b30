//! An artifact with the policy.

use comity_broker::policy_source::PushedArtifact;
use serde::Serialize;

use crate::output::{Answer, Sheet, fields};

/// What was pushed to a registry.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPushed {
    /// Address with the tag.
    pub address: String,
    /// Address with the digest.
    pub pinned: String,
    /// Digest of the manifest.
    pub digest: String,
    /// Head of the branch.
    pub commit: String,
}

impl From<PushedArtifact> for PolicyPushed {
    fn from(pushed: PushedArtifact) -> Self {
        let PushedArtifact { address, pinned, digest, commit } = pushed;
        Self { address, pinned, digest, commit }
    }
}

impl Answer for PolicyPushed {
    fn table(&self, _now_ms: u64) -> Sheet {
        let row = |name, value: &String| (name, value.clone());
        fields(&[row("Pushed", &self.address), row("Pinned", &self.pinned), row("Commit", &self.commit)])
    }
}
