//! The ServiceAccount of a donor's agent.

use std::path::{Path, PathBuf};

use comity_scenarios::deploy;
use comity_testkit::RealCluster;
use serde_json::json;

/// Manifests that every donor applies.
const MANIFESTS: [&str; 3] = ["rbac.yaml", "tenant-role.yaml", "admission.yaml"];

/// A kubeconfig of the agent's ServiceAccount, so that only the rights of `deploy/agent` apply; with further manifests
/// of that folder.
pub(crate) async fn agents_account(donor: &RealCluster, dir: &Path, further: &[&str]) -> PathBuf {
    for manifest in MANIFESTS.iter().chain(further).map(|name| deploy().join("agent").join(name)) {
        donor.kubectl(&["apply", "-f", manifest.to_str().unwrap()]).await.unwrap();
    }
    let token = donor.kubectl(&["create", "token", "comity-agent", "-n", "comity-system"]).await.unwrap();
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "agent",
        "clusters": [{
            "name": "c", "cluster": { "server": donor.server_url(), "certificate-authority": donor.ca_path() },
        }],
        "users": [{ "name": "agent", "user": { "token": token.trim() } }],
        "contexts": [{ "name": "agent", "context": { "cluster": "c", "user": "agent" } }],
    });
    let path = dir.join("agent.kubeconfig");
    std::fs::write(&path, text.to_string()).unwrap();
    path
}
