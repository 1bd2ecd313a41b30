//! The section `signedPolicy`: from which commit of the policy on this cluster verifies signatures by itself.

use comity_agent_model::settings::SettingChecks;
use comity_provenance::{ObjectId, PolicyFolder};
use serde::{Deserialize, Serialize};

/// The commit that is trusted for its id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SignedPolicySettings {
    /// A commit whose policy this cluster's owner has checked, by full id; absent: the first signed policy that a broker
    /// shows is trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<ObjectId>,
    /// Folder of the repository that has the policy at that commit; empty for the whole repository.
    pub folder: PolicyFolder,
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
