//! The section `usage` of the agent's configuration.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::exporters::ExporterEndpoint;

/// How the use of GPUs is read, besides from pods and claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UsageSettings {
    /// DCGM exporters, "http://host:port/metrics"; every address of the name is read. Absent: pods alone count.
    pub dcgm: Option<ExporterEndpoint>,
    /// Device readers, "http://host:port/metrics", for the devices that pods hold. Absent: pods and claims alone
    /// count.
    pub devices: Option<ExporterEndpoint>,
    /// File with the token for the device readers: one of the agent's ServiceAccount, for the audience
    /// `comity-device-readers`.
    pub devices_token_file: PathBuf,
}

impl Default for UsageSettings {
    fn default() -> Self {
        // Where deploy/agent/netstack/agent.yaml mounts it.
        Self { dcgm: None, devices: None, devices_token_file: "/var/run/secrets/comity.dev/devices/token".into() }
    }
}
