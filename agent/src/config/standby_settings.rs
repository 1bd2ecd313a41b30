//! The section `standby` of the agent's configuration.

use std::ops::RangeInclusive;
use std::time::Duration;

use comity_agent_model::settings::SettingChecks;
use serde::{Deserialize, Serialize};

/// A shorter term ends at every pause of the API server; a longer one delays a takeover by more than a minute.
const LEASE_SECONDS: RangeInclusive<u64> = 3..=60;

/// This agent has several replicas. One is active.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StandbySettings {
    /// Term of the Lease that the active one holds. A standby takes over when it was not renewed for this long; the
    /// active one forwards nothing when it could not renew it for four fifths of that.
    pub lease_seconds: u64,
}

impl Default for StandbySettings {
    fn default() -> Self {
        Self { lease_seconds: 6 }
    }
}

impl StandbySettings {
    /// Term of the Lease.
    #[must_use]
    pub const fn term(&self) -> Duration {
        Duration::from_secs(self.lease_seconds)
    }

    pub(super) fn check(&self, is_kubernetes: bool, checks: &mut SettingChecks) {
        if !is_kubernetes {
            let reason =
                "the replicas share their state through Kubernetes; leave the section out with an inventoryFile";
            checks.refuse("standby", "", reason);
        }
        if !LEASE_SECONDS.contains(&self.lease_seconds) {
            let reason = format!("want {} to {}; 6 suits most", LEASE_SECONDS.start(), LEASE_SECONDS.end());
            checks.refuse("standby.leaseSeconds", self.lease_seconds, reason);
        }
    }
}
