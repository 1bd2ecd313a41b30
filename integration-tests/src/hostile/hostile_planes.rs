//! API servers for the two agents. Each agent acts there with the rights of its ServiceAccount and no others, as
//! `deploy/agent` gives them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, Needs, SimulatedNode};
use serde_json::{Value, json};

use super::books::{DONOR_CLUSTER, NODE_GPUS, ORIGIN_CLUSTER};
use crate::programs::{deploy, utf8};

/// What the owner of a cluster applies before the agent starts.
const MANIFESTS: [&str; 5] = [
    "crds/gpurequests.yaml",
    "crds/gpuleases.yaml",
    "agent/rbac.yaml",
    "agent/tenant-role.yaml",
    "agent/admission.yaml",
];
/// The agent looks for slices of earlier leases; there are none.
const SLICE_DEFINITION: &str = r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
  "metadata": {"name": "resourceslices.authentication.liqo.io"},
  "spec": {"group": "authentication.liqo.io", "scope": "Namespaced",
    "names": {"plural": "resourceslices", "singular": "resourceslice", "kind": "ResourceSlice",
      "listKind": "ResourceSliceList"},
    "versions": [{"name": "v1beta1", "served": true, "storage": true,
      "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}"#;
/// The label of everything that is made for a lease, and of the cluster that borrows.
const LEASE_OF_OBJECT: &str = "comity.dev/lease";
const ORIGIN_LABEL: &str = "comity.dev/origin";
/// The resource of a quota that counts GPUs.
const GPU_REQUESTS: &str = "requests.nvidia.com/gpu";

/// A lease that the donor grants: on its disk, or as a namespace with a quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DonorGrant {
    /// Lease.
    pub(crate) lease: String,
    /// Cluster that borrows.
    pub(crate) origin: String,
    /// GPUs of its quota.
    pub(crate) gpus: u64,
}

/// The API servers by cluster.
pub(crate) struct HostilePlanes(BTreeMap<&'static str, ControlPlane>);

impl HostilePlanes {
    /// Starts one for each cluster, and applies what its owner applies.
    ///
    /// # Errors
    /// When one does not start.
    pub(crate) async fn start(dir: &Path) -> Result<Self> {
        let node = |number| SimulatedNode::h100(&format!("node-{number}"), NODE_GPUS);
        let (origin, donor) = tokio::try_join!(
            plane(dir, ORIGIN_CLUSTER, vec![SimulatedNode::without_gpus("campus-1")]),
            plane(dir, DONOR_CLUSTER, vec![node(1), node(2)]),
        )?;
        Ok(Self([(ORIGIN_CLUSTER, origin), (DONOR_CLUSTER, donor)].into()))
    }

    /// The API server of a cluster.
    ///
    /// # Errors
    /// When it has none.
    pub(crate) fn of(&self, cluster: &str) -> Result<&ControlPlane> {
        self.0.get(cluster).context("no such cluster")
    }

    /// Writes a kubeconfig with the rights of the agent's ServiceAccount.
    ///
    /// # Errors
    /// When the API server issues no token.
    pub(crate) async fn agent_kubeconfig(&self, cluster: &str, dir: &Path) -> Result<PathBuf> {
        let plane = self.of(cluster)?;
        let create = ["create", "token", "comity-agent", "-n", "comity-system", "--duration=24h"];
        let token = plane.kubectl(&create).await?;
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "agent",
            "clusters": [{
                "name": "c", "cluster": { "server": plane.server_url(), "certificate-authority": plane.ca_path() },
            }],
            "users": [{ "name": "agent", "user": { "token": token.trim() } }],
            "contexts": [{ "name": "agent", "context": { "cluster": "c", "user": "agent" } }],
        });
        let path = dir.join(format!("{cluster}.agent.kubeconfig"));
        std::fs::write(&path, text.to_string())?;
        Ok(path)
    }

    /// The quotas of leases on the donor.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) async fn grants(&self) -> Result<Vec<DonorGrant>> {
        let quotas = labelled(self.of(DONOR_CLUSTER)?, "resourcequotas").await?;
        let mut origins = BTreeMap::new();
        for namespace in labelled(self.of(DONOR_CLUSTER)?, "namespaces").await? {
            let origin = text(&namespace["metadata"]["labels"][ORIGIN_LABEL]);
            origins.insert(text(&namespace["metadata"]["name"]), origin);
        }
        let counted = quotas.iter().filter(|quota| quota["spec"]["hard"][GPU_REQUESTS].is_string());
        let grant = |quota: &Value| DonorGrant {
            lease: text(&quota["metadata"]["labels"][LEASE_OF_OBJECT]),
            // It may end between the two lists.
            origin: origins
                .get(&text(&quota["metadata"]["namespace"]))
                .cloned()
                .unwrap_or_else(|| ORIGIN_CLUSTER.to_owned()),
            gpus: text(&quota["spec"]["hard"][GPU_REQUESTS]).parse().unwrap_or(u64::MAX),
        };
        Ok(counted.map(grant).collect())
    }

    /// Leases for which the origin has a Secret, with the tokens in them.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) async fn kubeconfigs(&self) -> Result<BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        for secret in labelled(self.of(ORIGIN_CLUSTER)?, "secrets").await? {
            let kubeconfig = STANDARD.decode(text(&secret["data"]["kubeconfig"]))?;
            found.insert(text(&secret["metadata"]["labels"][LEASE_OF_OBJECT]), String::from_utf8(kubeconfig)?);
        }
        Ok(found)
    }

    /// Stops both.
    ///
    /// # Errors
    /// When a process does not end.
    pub(crate) async fn stop(self) -> Result<()> {
        for plane in self.0.into_values() {
            plane.stop().await?;
        }
        Ok(())
    }
}

async fn plane(dir: &Path, name: &str, nodes: Vec<SimulatedNode>) -> Result<ControlPlane> {
    let binaries = Binaries::ensure(Needs::ControlPlane).await?;
    let config = ControlPlaneConfig { nodes, ..ControlPlaneConfig::new(name, dir.join(format!("plane-{name}"))) };
    let plane = ControlPlane::start(&binaries, config).await?;
    plane.kubectl_with_input(&["apply", "-f", "-"], SLICE_DEFINITION).await?;
    for manifest in MANIFESTS {
        plane.kubectl(&["apply", "-f", utf8(&deploy().join(manifest))?]).await?;
    }
    Ok(plane)
}

/// Objects of a kind that are made for a lease.
async fn labelled(plane: &ControlPlane, kind: &str) -> Result<Vec<Value>> {
    let listed = plane.kubectl(&["get", kind, "-A", "-l", LEASE_OF_OBJECT, "-o", "json"]).await?;
    let list: Value = serde_json::from_str(&listed)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
