//! The section `usage` of the agent's configuration.

use serde::{Deserialize, Serialize};

use crate::usage::DcgmEndpoint;

/// How the use of lent leases is measured, besides by their pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UsageSettings {
    /// DCGM exporters, "http://host:port/metrics"; every address of the name is read. Absent: pods alone count.
    pub dcgm: Option<DcgmEndpoint>,
}
