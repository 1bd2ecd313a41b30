//! Input of a node's plan.

use std::collections::BTreeMap;
use std::time::Duration;

use comity_types::LeaseId;

use super::mig_config::MigConfigs;
use super::mig_node::MigNode;
use super::mig_settings::MigSettings;

/// A lease's instances on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseNeed {
    /// The lease.
    pub(crate) lease: LeaseId,
    /// Profile of each instance.
    pub(crate) profile: String,
    /// Their starts, by device.
    pub(crate) devices: BTreeMap<usize, Vec<u8>>,
}

impl LeaseNeed {
    pub(crate) fn count(&self) -> u64 {
        self.devices.values().map(|starts| u64::try_from(starts.len()).unwrap_or(u64::MAX)).sum()
    }
}

/// Input of a plan.
#[derive(Clone, Copy)]
pub(crate) struct NodeState<'a> {
    /// The node.
    pub(crate) node: &'a MigNode,
    /// Its leases, in the order of their fencing tokens.
    pub(crate) leases: &'a [LeaseNeed],
    /// The configurations, or why they are unknown.
    pub(crate) configs: Result<&'a MigConfigs, &'a str>,
    /// Settings.
    pub(crate) settings: &'a MigSettings,
    /// Monotonic time.
    pub(crate) now: Duration,
    /// Wall-clock time, in seconds since 1970.
    pub(crate) unix_seconds: u64,
}
