//! Waits until a control plane is ready.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::control_plane::{Component, ControlPlaneConfig, ControlPlaneError};
use crate::daemon::Daemon;
use crate::simulated_node::SimulatedNode;

const READINESS_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Timeout of one query to an API server that may be starting.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// The wait of one start, with its client and deadline.
pub(super) struct Waiting<'a> {
    config: &'a ControlPlaneConfig,
    client: Client,
    began: Instant,
}

impl<'a> Waiting<'a> {
    pub(super) async fn new(
        config: &'a ControlPlaneConfig,
        kubeconfig: &str,
        began: Instant,
    ) -> Result<Self, ControlPlaneError> {
        let unusable = |source| ControlPlaneError::Kubeconfig { cluster: config.name.clone(), source };
        let parsed = Kubeconfig::from_yaml(kubeconfig).map_err(unusable)?;
        let client_config =
            kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await.map_err(unusable)?;
        let client = Client::try_from(client_config).map_err(|source| ControlPlaneError::Api {
            cluster: config.name.clone(),
            what: "a client".into(),
            source: Box::new(source),
        })?;
        Ok(Self { config, client, began })
    }

    pub(super) fn into_client(self) -> Client {
        self.client
    }

    /// Waits until /readyz answers ok.
    pub(super) async fn for_api_server(&self, daemons: &BTreeMap<Component, Daemon>) -> Result<(), ControlPlaneError> {
        self.until("the API server to be ready", Component::ApiServer, daemons, || async {
            let request = http::Request::get("/readyz").body(Vec::new()).ok()?;
            self.client.request_text(request).await.ok()
        })
        .await
    }

    /// Creates the nodes, except those of a kept state.
    pub(super) async fn create_nodes(&self, nodes: &[SimulatedNode]) -> Result<(), ControlPlaneError> {
        let api: Api<Node> = Api::all(self.client.clone());
        for node in nodes {
            match api.create(&PostParams::default(), &node.manifest()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(source) => {
                    return Err(ControlPlaneError::Api {
                        cluster: self.config.name.clone(),
                        what: format!("node {}", node.name),
                        source: Box::new(source),
                    });
                }
            }
        }
        Ok(())
    }

    /// Waits until every node is Ready and the namespace `default` accepts pods.
    pub(super) async fn for_nodes_and_accounts(
        &self,
        daemons: &BTreeMap<Component, Daemon>,
    ) -> Result<(), ControlPlaneError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), "default");
        self.until("the default ServiceAccount", Component::ControllerManager, daemons, || async {
            accounts.get_opt("default").await.ok().flatten()
        })
        .await?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        self.until("its nodes to be Ready", Component::Kwok, daemons, || async {
            let found = nodes.list(&ListParams::default()).await.ok()?;
            let ready = found.items.iter().filter(|node| usable(node)).count();
            (ready >= self.config.nodes.len()).then_some(())
        })
        .await
    }

    /// Retries until there is an answer, a daemon has ended or the timeout is exceeded.
    async fn until<T>(
        &self,
        what: &str,
        suspect: Component,
        daemons: &BTreeMap<Component, Daemon>,
        mut ask: impl AsyncFnMut() -> Option<T>,
    ) -> Result<(), ControlPlaneError> {
        loop {
            // Without a subscriber: the client logs each refusal of a server that is starting as an error.
            let asked = tokio::time::timeout(QUERY_TIMEOUT, ask()).with_subscriber(NoSubscriber::new());
            if let Ok(Some(_)) = asked.await {
                return Ok(());
            }
            for daemon in daemons.values() {
                if let Some(status) = daemon.ended() {
                    return Err(ControlPlaneError::Ended {
                        cluster: self.config.name.clone(),
                        component: daemon.name(),
                        status,
                        log: daemon.log_tail(),
                    });
                }
            }
            let after = self.began.elapsed();
            if after > self.config.patience {
                return Err(ControlPlaneError::NotReady {
                    cluster: self.config.name.clone(),
                    what: what.to_owned(),
                    after,
                    component: suspect.program(),
                    log: daemons.get(&suspect).map(Daemon::log_tail).unwrap_or_default(),
                });
            }
            tokio::time::sleep(READINESS_POLL_INTERVAL).await;
        }
    }
}

/// Whether a node is Ready and free of the taint that the controller manager removes slightly later; only then do pods
/// fit.
fn usable(node: &Node) -> bool {
    let ready = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let tainted = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .any(|taint| taint.key.starts_with("node.kubernetes.io/"));
    ready && !tainted
}
