//! The section `signedPolicy`: from which commit of the policy on this cluster verifies signatures by itself.

use std::time::Duration;

use comity_agent_model::settings::SettingChecks;
use comity_provenance::{ObjectId, PolicyFolder};
use serde::{Deserialize, Serialize};

/// Time in which brokers can show the commit that they announce: an honest one may have to fetch it. New leases wait until
/// then, and are refused afterwards.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);

/// The commit that is trusted for its id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SignedPolicySettings {
    /// A commit whose policy this cluster's owner has checked, by full id; absent: the first signed policy that a broker
    /// shows is trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<ObjectId>,
    /// Folder of the repository that has the policy at that commit; empty for the whole repository.
    pub folder: PolicyFolder,
    /// Time in which brokers can show the commit that they announce. Tests shorten it; no file can.
    #[serde(skip, default = "shown_within")]
    pub shown_within: Duration,
}

fn shown_within() -> Duration {
    SHOWN_WITHIN
}

impl Default for SignedPolicySettings {
    fn default() -> Self {
        Self { commit: None, folder: PolicyFolder::default(), shown_within: SHOWN_WITHIN }
    }
}

impl SignedPolicySettings {
    pub(super) fn check(&self, checks: &mut SettingChecks) {
        if self.commit.is_none() && self.folder != PolicyFolder::default() {
            checks.refuse(
                "signedPolicy.folder",
                self.folder.as_str(),
                "without signedPolicy.commit the broker names the folder; add the commit, or leave it out",
            );
        }
    }
}
