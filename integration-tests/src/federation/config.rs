//! The configuration of a federation and of its agents.

use std::path::{Path, PathBuf};

use crate::process::place::Place;

/// The parameters of a federation.
pub struct FederationConfig {
    /// Number of brokers, one or three.
    pub brokers: u64,
    /// Directory of policy documents.
    pub policy: PathBuf,
    /// Where the brokers and the `comity` command run.
    pub place: Place,
    /// Log entries between two snapshots of a broker.
    pub snapshot_every: u64,
    /// Lifetime of cluster certificates in seconds.
    pub cluster_certificates_s: u64,
    /// Names that the brokers' certificates carry besides their own addresses.
    pub hosts: Vec<String>,
    /// Directory of an authority that another program keeps current.
    pub ca: Option<PathBuf>,
}

impl FederationConfig {
    /// Three brokers on this host with the example policy.
    #[must_use]
    pub fn with_example_policy() -> Self {
        let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/examples");
        Self {
            brokers: 3,
            policy,
            place: Place::here(),
            snapshot_every: 10_000,
            cluster_certificates_s: 86_400,
            hosts: Vec::new(),
            ca: None,
        }
    }
}

/// The source of an agent's inventory.
pub enum InventorySource {
    /// A Kubernetes cluster, by a kubeconfig with an administrator's rights.
    Kubernetes(PathBuf),
    /// A Kubernetes cluster, by a kubeconfig of the agent's ServiceAccount, which the shipped policies restrict.
    AsAgent(PathBuf),
    /// An inventory file on a host without Kubernetes.
    File(PathBuf),
}

/// The parameters of an agent.
pub struct AgentSpec {
    /// Cluster id, named in the policy.
    pub cluster: String,
    /// Source of its inventory.
    pub inventory: InventorySource,
    /// Where it runs.
    pub place: Place,
    /// Value of `COMITY_AGENT_CRASH_AT`, to make it crash once.
    pub crash_at: Option<String>,
    /// Mode of its fabric.
    pub fabric_mode: &'static str,
    /// Additional sections of its configuration, in YAML.
    pub more: String,
}

impl AgentSpec {
    /// An agent on this host.
    #[must_use]
    pub fn new(cluster: &str, inventory: InventorySource) -> Self {
        Self {
            cluster: cluster.to_owned(),
            inventory,
            place: Place::here(),
            crash_at: None,
            fabric_mode: "netstack",
            more: String::new(),
        }
    }
}
