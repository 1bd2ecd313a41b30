//! Pods that are bound by hand, past the scheduler.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::grants::{GPU, LEASED_GPUS, OPEN_LEASE, SharedLedger, with};
use super::retried::retried;

/// A pod of a fault.
pub(super) struct MisplacedPod {
    pub(super) client: Client,
    pub(super) donor: String,
    pub(super) name: String,
    pub(super) ledger: SharedLedger,
}

/// A node with its GPUs and whether each lease is open on it.
struct OpenNode {
    name: String,
    gpus: u64,
    leases: Vec<String>,
}

impl MisplacedPod {
    /// A pod of a lease is bound to a node without that lease; measures until it is gone.
    ///
    /// # Errors
    /// When it is not evicted.
    pub(super) async fn drift(&self) -> Result<Duration> {
        let nodes = self.nodes().await?;
        let is_elsewhere = |lease: &String| nodes.iter().find(|node| !node.leases.contains(lease));
        let Some((lease, node)) =
            nodes.iter().flat_map(|node| &node.leases).find_map(|lease| Some((lease, is_elsewhere(lease)?)))
        else {
            return Ok(Duration::ZERO);
        };
        let namespace = format!("comity-{lease}");
        if !self.bind(&namespace, 1, &node.name).await? {
            return Ok(Duration::ZERO);
        }
        let began = Instant::now();
        let pods = self.pods(&namespace);
        retried(&format!("{namespace}/{} to be evicted from {}", self.name, node.name), || async {
            // A pod that ends in its grace period is corrected, too.
            Ok(pods.get_opt(&self.name).await?.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()))
        })
        .await?;
        Ok(began.elapsed())
    }

    /// A pod of the donor's own takes all GPUs of a node with leases; measures until all of them are called back.
    ///
    /// # Errors
    /// When the node stays over-committed.
    pub(super) async fn use_leased_node(&self) -> Result<Duration> {
        const NAMESPACE: &str = "default";
        let nodes = self.nodes().await?;
        let Some(node) = nodes.iter().find(|node| !node.leases.is_empty()) else { return Ok(Duration::ZERO) };
        if !self.bind(NAMESPACE, node.gpus, &node.name).await? {
            return Ok(Duration::ZERO);
        }
        let began = Instant::now();
        let key = format!("{NAMESPACE}/{}", self.name);
        let corrected = retried(&format!("the leases of {} to be called back", node.name), || async {
            Ok(with(&self.ledger, |ledger| {
                ledger.has_pod(&self.donor, &key) && !ledger.is_overcommitted(&self.donor, &node.name)
            }))
        })
        .await;
        let took = began.elapsed();
        let pods = self.pods(NAMESPACE);
        retried("the pod on a leased node to go", || async {
            match pods.delete(&self.name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
                result => Ok(result.map(|_| false)?),
            }
        })
        .await?;
        corrected.map(|()| took)
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The nodes, with the leases by namespace that are not ending.
    async fn nodes(&self) -> Result<Vec<OpenNode>> {
        let all = ListParams::default();
        let (nodes, namespaces) = (Api::<Node>::all(self.client.clone()), Api::<Namespace>::all(self.client.clone()));
        let began = Instant::now();
        let (nodes, namespaces) = loop {
            // The API server may be down.
            match tokio::try_join!(nodes.list(&all), namespaces.list(&all)) {
                Ok(found) => break found,
                Err(error) if began.elapsed() > Duration::from_secs(60) => bail!("cannot list nodes: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        };
        let lives = |lease: &str| {
            namespaces.iter().any(|namespace| {
                namespace.name_any() == format!("comity-{lease}") && namespace.metadata.deletion_timestamp.is_none()
            })
        };
        let open = |node: &Node| {
            let status = node.status.clone().unwrap_or_default();
            let capacity: BTreeMap<_, _> = status.capacity.unwrap_or_default();
            let leases = capacity.keys().filter_map(|name| name.strip_prefix(OPEN_LEASE));
            OpenNode {
                name: node.name_any(),
                gpus: capacity.get(GPU).and_then(|amount| amount.0.parse().ok()).unwrap_or(0),
                leases: leases.filter(|lease| lives(lease)).map(str::to_owned).collect(),
            }
        };
        Ok(nodes.iter().map(open).collect())
    }

    /// Makes the pod and binds it; false if its lease ended meanwhile.
    async fn bind(&self, namespace: &str, gpus: u64, node: &str) -> Result<bool> {
        let pods = self.pods(namespace);
        let mut limits = BTreeMap::from([(GPU.to_owned(), gpus.to_string())]);
        // A policy demands it in leases on several nodes, as the agent's webhook would add it.
        if let Some(lease) = namespace.strip_prefix("comity-") {
            limits.insert(format!("{LEASED_GPUS}{lease}"), gpus.to_string());
        }
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": self.name },
            "spec": {
                "schedulerName": "nobody",
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" },
                },
                "containers": [{
                    "name": "work", "image": "registry.example/work:1",
                    "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                    "resources": { "limits": limits },
                }],
            },
        }))?;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": self.name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let began = Instant::now();
        loop {
            let made = match pods.create(&PostParams::default(), &pod).await {
                Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(()),
                result => result.map(drop),
            };
            let bound = match made {
                Ok(()) => {
                    let parameters = PostParams::default();
                    pods.create_subresource::<_, Value>("binding", &self.name, &parameters, &binding).await.map(drop)
                }
                Err(error) => Err(error),
            };
            match bound {
                Ok(()) => return Ok(true),
                // Bound by a call whose answer was lost.
                Err(kube::Error::Api(status)) if status.code == 409 && status.message.contains("already assigned") => {
                    return Ok(true);
                }
                // The namespace ends, or has no quota for it.
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404 | 409) => return Ok(false),
                Err(error) if began.elapsed() > Duration::from_secs(60) => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }
}
