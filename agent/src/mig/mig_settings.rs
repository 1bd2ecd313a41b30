//! Settings of cutting.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Most GPUs of one node.
pub(crate) const MAX_GPUS: usize = 16;

/// Whether and how the agent cuts MIG devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MigSettings {
    /// Whether it cuts at all, on nodes with the label `comity.dev/mig: "true"`.
    pub repartition: bool,
    /// The MIG manager's ConfigMap, "NAMESPACE/NAME".
    pub config_map: String,
    /// The key of its configurations.
    pub key: String,
    /// Seconds that a device is empty before it returns to the configuration that its node had before.
    pub empty_seconds: u64,
    /// Seconds that the MIG manager may take for a change, a reboot included.
    pub change_seconds: u64,
    /// Seconds that a kubelet may take to show a changed ConfigMap to the MIG manager.
    pub mount_seconds: u64,
    /// Seconds without another change of a node after a failed one.
    pub backoff_seconds: u64,
}

impl Default for MigSettings {
    fn default() -> Self {
        Self {
            repartition: false,
            config_map: String::new(),
            key: "config.yaml".to_owned(),
            empty_seconds: 300,
            change_seconds: 600,
            mount_seconds: 120,
            backoff_seconds: 600,
        }
    }
}

impl MigSettings {
    /// Namespace and name of the ConfigMap.
    #[must_use]
    pub fn namespace_and_name(&self) -> Option<(&str, &str)> {
        self.config_map.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty())
    }

    pub(crate) const fn empty(&self) -> Duration {
        Duration::from_secs(self.empty_seconds)
    }

    pub(crate) const fn change(&self) -> Duration {
        Duration::from_secs(self.change_seconds)
    }

    pub(crate) const fn mount(&self) -> Duration {
        Duration::from_secs(self.mount_seconds)
    }

    pub(crate) const fn backoff(&self) -> Duration {
        Duration::from_secs(self.backoff_seconds)
    }
}
