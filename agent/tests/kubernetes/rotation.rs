//! The kubelet replaces the file of a pod's token. The agent continues with the new one.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use comity_agent_kubernetes::api::{KubernetesApi, KubernetesSource};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use crate::cluster::Cluster;

/// The file is read again every minute.
const READ_WITHIN: Duration = Duration::from_secs(90);

/// A connection whose token file was replaced.
pub(crate) struct Replaced {
    api: KubernetesApi,
    file: PathBuf,
}

/// Connects with a token from a file, then replaces it and revokes the first one.
pub(crate) async fn a_token_is_replaced(cluster: &Cluster) -> Replaced {
    let plane = cluster.plane();
    let token = async |more: &[&str]| {
        let args = ["create", "token", "comity-agent", "-n", "comity-system"];
        plane.kubectl(&[&args[..], more].concat()).await.unwrap()
    };
    plane.kubectl(&["-n", "comity-system", "create", "secret", "generic", "first"]).await.unwrap();
    let file = cluster.dir.path().join("token");
    std::fs::write(&file, token(&["--bound-object-kind=Secret", "--bound-object-name=first"]).await.trim()).unwrap();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "agent",
        "clusters": [{ "name": "c", "cluster": { "server": plane.server_url(), "certificate-authority": plane.ca_path() } }],
        "users": [{ "name": "agent", "user": { "tokenFile": file } }],
        "contexts": [{ "name": "agent", "context": { "cluster": "c", "user": "agent" } }],
    });
    let path = cluster.dir.path().join("token-file.kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let api = KubernetesApi::connect(&KubernetesSource::Kubeconfig { path, context: None }).await.unwrap();
    let replaced = Replaced { api, file };
    replaced.call().await.unwrap();
    std::fs::write(&replaced.file, token(&[]).await.trim()).unwrap();
    plane.kubectl(&["-n", "comity-system", "delete", "secret", "first"]).await.unwrap();
    replaced
}

impl Replaced {
    async fn call(&self) -> Result<(), kube::Error> {
        Api::<Node>::all(self.api.client()).list(&ListParams::default().limit(1)).await.map(drop)
    }

    /// The first token is refused by now: the answer comes with the second.
    pub(crate) async fn goes_on(self) {
        let began = Instant::now();
        while let Err(error) = self.call().await {
            assert!(began.elapsed() < READ_WITHIN, "{error}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
