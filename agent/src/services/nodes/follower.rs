//! `comity-agent node`: on a node that is not the gateway, follows the gateway's document.
//!
//! It has no credentials of the federation and reads one ConfigMap. While that is invalid or the API server does not
//! answer, the last valid state stays.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use comity_agent_fabric::{FabricError, NodeOverlay, Published};
use comity_agent_kubernetes::api::{KubernetesApi, KubernetesApiError, KubernetesSource};
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_runtime::{AdminServer, BuildInfo, Readiness, ReadinessGuard, Shutdown};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use prometheus::IntGauge;
use tokio_util::sync::CancellationToken;

use super::{CONFIG_MAP, KEY};

/// How often failures are retried and the device is checked.
const DEVICE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Settings of a node's agent.
#[derive(Clone, Debug)]
pub struct FollowerConfig {
    /// The API server.
    pub kubernetes: KubernetesSource,
    /// Namespace of the gateway's agent.
    pub namespace: String,
    /// Name of the vxlan device.
    pub device: String,
    /// This node's InternalIP; absent: the address that it uses toward the gateway.
    pub node_ip: Option<Ipv4Addr>,
    /// Address of metrics and probes, without authentication.
    pub admin_listen: SocketAddr,
}

/// Why a node's agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum FollowerError {
    /// The Kubernetes API.
    #[error(transparent)]
    Kubernetes(#[from] KubernetesApiError),
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The admin server.
    #[error(transparent)]
    Admin(#[from] comity_runtime::admin::AdminError),
    /// The metrics.
    #[error("metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
}

struct Follower {
    overlay: NodeOverlay,
    wanted: Wanted,
    /// Whether the node has the wanted state, as far as known.
    done: bool,
    readiness: ReadinessGuard,
    gauges: FollowerGauges,
    failures: FailureLog,
}

/// The followed document, as metrics.
struct FollowerGauges {
    generation: IntGauge,
    networks: IntGauge,
}

impl FollowerGauges {
    fn new() -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| IntGauge::new(format!("comity_agent_node_{name}"), help);
        Ok(Self {
            generation: gauge("generation", "Generation of the followed document, 0 if no remote networks exist.")?,
            networks: gauge(
                "networks",
                "Pod networks that this node reaches over the gateway, and pods of it that use a donor's API.",
            )?,
        })
    }

    fn register(&self, registry: &prometheus::Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.generation.clone()))?;
        registry.register(Box::new(self.networks.clone()))
    }
}

/// The content of the ConfigMap, as far as it could be read.
enum Wanted {
    /// Not read yet: nothing is made or removed.
    Unread,
    Nothing,
    Something(Published, u64),
}

/// Runs until told to stop; then removes everything that it made.
///
/// # Errors
/// [`FollowerError`] when it cannot start.
pub async fn run(config: FollowerConfig, shutdown: &Shutdown) -> Result<(), FollowerError> {
    tracing::info!(device = config.device, "comity-agent {} starts at a node", env!("CARGO_PKG_VERSION"));
    let api = KubernetesApi::connect(&config.kubernetes).await?;
    let registry = prometheus::Registry::new();
    let readiness = Readiness::new();
    let mut follower = Follower::open(&config.device, config.node_ip, &readiness)?;
    follower.gauges.register(&registry)?;
    let build = BuildInfo::of("comity-agent");
    let admin = AdminServer::start(config.admin_listen, registry, readiness, build, shutdown.token()).await?;
    follower.run(api.client(), &config.namespace, shutdown.token()).await;
    admin.stopped().await;
    Ok(())
}

/// Follows the gateway inside a standby agent until stopped; then removes everything that it made.
///
/// # Errors
/// [`FollowerError`] when it cannot start.
pub async fn follow(
    client: Client,
    namespace: &str,
    device: &str,
    node_ip: Option<Ipv4Addr>,
    stop: CancellationToken,
) -> Result<(), FollowerError> {
    Follower::open(device, node_ip, &Readiness::new())?.run(client, namespace, stop).await;
    Ok(())
}

impl Follower {
    fn open(device: &str, node_ip: Option<Ipv4Addr>, readiness: &Readiness) -> Result<Self, FollowerError> {
        Ok(Self {
            overlay: NodeOverlay::open(device, node_ip)?,
            wanted: Wanted::Unread,
            done: true,
            readiness: readiness.guard("overlay"),
            gauges: FollowerGauges::new()?,
            failures: FailureLog::default(),
        })
    }

    async fn run(&mut self, client: Client, namespace: &str, stop: CancellationToken) {
        let maps = Api::<ConfigMap>::namespaced(client, namespace);
        let mut maps = watch_object(maps, CONFIG_MAP).default_backoff().boxed();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(seen) = maps.next() => match seen {
                    Ok(map) => self.hear(map),
                    Err(error) => {
                        self.say(&format!("ConfigMap {namespace}/{CONFIG_MAP} cannot be watched: {error}"));
                    }
                },
                () = tokio::time::sleep(DEVICE_CHECK_INTERVAL) => self.check_device(),
            }
        }
        self.overlay.clear();
    }

    fn hear(&mut self, map: Option<ConfigMap>) {
        let text = map.and_then(|map| map.data?.remove(KEY)).filter(|text| !text.trim().is_empty());
        self.wanted = match text.as_deref().map(Published::read) {
            None => Wanted::Nothing,
            Some(Ok((published, _))) if published.is_empty() => Wanted::Nothing,
            Some(Ok((published, generation))) => Wanted::Something(published, generation),
            Some(Err(error)) => {
                self.readiness.not_ready(error.to_string());
                return self.say(&format!("the gateway's document cannot be applied: {error}"));
            }
        };
        self.settle();
    }

    /// Retries failures, and reverts changes by others.
    fn check_device(&mut self) {
        match self.overlay.is_whole() {
            Ok(whole) if whole && self.done => {}
            Ok(whole) => {
                if !whole {
                    tracing::warn!("the overlay's device or firewall table was changed; it is made again");
                }
                self.settle();
            }
            Err(error) => self.say(&error.to_string()),
        }
    }

    fn settle(&mut self) {
        let (generation, networks) = match &self.wanted {
            Wanted::Unread => return,
            Wanted::Nothing => {
                self.overlay.clear();
                (0, 0)
            }
            Wanted::Something(published, generation) => match self.overlay.apply(published) {
                Ok(refused) if refused.is_empty() => {
                    (*generation, published.pod_networks.len() + published.api_routes.len())
                }
                Ok(refused) => return self.failed(&refused),
                Err(error) => return self.failed(&[error]),
            },
        };
        if self.gauges.generation.get() != i64::try_from(generation).unwrap_or(i64::MAX) {
            tracing::info!(generation, networks, "this node follows the gateway");
        }
        self.gauges.generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        self.gauges.networks.set(i64::try_from(networks).unwrap_or(i64::MAX));
        self.done = true;
        self.failures.cleared(CONFIG_MAP);
        self.readiness.ready();
    }

    fn failed(&mut self, errors: &[FabricError]) {
        let reason = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        self.done = false;
        self.readiness.not_ready(reason.clone());
        self.say(&reason);
    }

    fn say(&mut self, error: &str) {
        if self.failures.is_new(CONFIG_MAP, error) {
            tracing::error!("{error}");
        }
    }
}
