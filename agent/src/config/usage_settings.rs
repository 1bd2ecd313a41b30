//! The section `usage` of the agent's configuration.

use serde::{Deserialize, Serialize};

use crate::exporters::ExporterEndpoint;

/// How the use of GPUs is read, besides from pods and claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UsageSettings {
    /// DCGM exporters, "http://host:port/metrics"; every address of the name is read. Absent: pods alone count.
    pub dcgm: Option<ExporterEndpoint>,
    /// Device readers, "http://host:port/metrics", for the devices that pods hold. Absent: pods and claims alone
    /// count.
    pub devices: Option<ExporterEndpoint>,
}
