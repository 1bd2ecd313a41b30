//! A Kubernetes Service by name and port.

use serde::{Deserialize, Serialize};

/// A Service in front of the agent, as configuration names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Port; 443 if absent.
    #[serde(default = "https_port")]
    pub port: u16,
}

const fn https_port() -> u16 {
    443
}
