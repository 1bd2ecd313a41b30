//! The section `canary` of the agent's configuration.

use std::ops::RangeInclusive;
use std::time::Duration;

use comity_agent_model::settings::SettingChecks;
use serde::{Deserialize, Serialize};

/// A minute to a week.
const EVERY_SECONDS: RangeInclusive<u64> = 60..=604_800;

/// Whether guests' NetworkPolicies must be enforced where they run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkPolicies {
    /// A node lends once a canary showed that the CNI enforces them there.
    #[default]
    Required,
    /// The cluster's owner accepts that guests reach this cluster's networks.
    NotEnforced,
}

/// Pods on each node that prove, before the node lends, that containers see no GPU which they did not ask for, and that
/// the CNI enforces NetworkPolicies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CanarySettings {
    /// Its image, as `deploy/images/canary` makes it.
    pub image: String,
    /// How often each node is proved again.
    pub every_seconds: u64,
    /// Whether guests' NetworkPolicies must be enforced.
    pub network_policies: NetworkPolicies,
}

impl Default for CanarySettings {
    fn default() -> Self {
        Self { image: String::new(), every_seconds: 86_400, network_policies: NetworkPolicies::Required }
    }
}

impl CanarySettings {
    /// How often each node is proved again.
    #[must_use]
    pub const fn every(&self) -> Duration {
        Duration::from_secs(self.every_seconds)
    }

    pub(super) fn check(&self, is_kubernetes: bool, checks: &mut SettingChecks) {
        if !is_kubernetes {
            let reason = "canaries are pods and need Kubernetes; leave the section out with an inventoryFile";
            checks.refuse("canary.image", &self.image, reason);
        } else if self.image.trim().is_empty() {
            checks.refuse("canary.image", "", "name the image that you built from deploy/images/canary");
        }
        if !EVERY_SECONDS.contains(&self.every_seconds) {
            let reason = format!("want {} to {}", EVERY_SECONDS.start(), EVERY_SECONDS.end());
            checks.refuse("canary.everySeconds", self.every_seconds, reason);
        }
    }
}
