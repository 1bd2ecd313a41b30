//! Several replicas of one agent: one is active, the others wait until they may continue its work.
//!
//! ```text
//! Lease comity-agent ─▶ fence of the fabric        who may forward, and until when
//! Secret comity-agent-state ─▶ state directory     keys, certificate, records: written before they take effect
//! EndpointSlices ─▶ Services                       the address of the active one
//! ```
//!
//! A replica that waits has no part in the federation. It reads its predecessor's state only when it holds the Lease, and
//! its first write makes every later write of the predecessor fail.

mod active_endpoints;
mod state_secret;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use comity_agent_fabric::{Fence, overlay_device};
use comity_agent_kubernetes::api::{KubernetesApi, KubernetesApiError, KubernetesSource};
use comity_agent_kubernetes::leader_lease::{LeaderLease, LeaderLeaseError, Renewed};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_state::replica::Replica;
use comity_agent_state::store::{Store, StoreError};
use comity_runtime::{Entropy, Shutdown};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, FabricModeName, StandbySettings};
use crate::services::nodes::follower;
use active_endpoints::ActiveEndpoints;
use state_secret::StateSecret;

pub use state_secret::SECRET as STATE_SECRET;

/// Name of the Lease.
pub const ACTIVE_LEASE: &str = "comity-agent";
/// How often files of the state directory are compared with the replica; records are written at once.
const FILES_INTERVAL: Duration = Duration::from_secs(5);
/// How long giving the Lease back may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a replica cannot become active.
#[derive(Debug, thiserror::Error)]
pub enum StandbyError {
    /// The Kubernetes API.
    #[error(transparent)]
    Kubernetes(#[from] KubernetesApiError),
    /// The replicated state cannot be read.
    #[error("{0}; apply deploy/agent/standby/rbac.yaml, or leave out the section standby")]
    State(#[from] DeliveryError),
    /// It cannot be put into the state directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The process stops.
    #[error("stopped while it waited as a standby")]
    Stopped,
}

/// Parts that only the active replica has: the Lease, the open fence, and the writer of the state's copy.
pub struct ActiveRole {
    /// Closed once another replica may be active.
    pub fence: Fence,
    /// Copy of the store's state; absent: this agent has no standby.
    pub replica: Option<Arc<dyn Replica>>,
    /// The holder of the Lease, once that is another replica.
    replaced_by: watch::Receiver<Option<String>>,
    release: Option<oneshot::Sender<()>>,
    /// Closed when the task that renews has ended.
    renewing: mpsc::Sender<()>,
    endpoints: Option<ActiveEndpoints>,
}

impl ActiveRole {
    /// The role of an agent without a standby.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            fence: Fence::always_open(),
            replica: None,
            replaced_by: watch::channel(None).1,
            release: None,
            renewing: mpsc::channel(1).0,
            endpoints: None,
        }
    }

    /// Waits until this replica is the active one, and has the state of the earlier one.
    ///
    /// # Errors
    /// [`StandbyError`].
    pub async fn wait(
        config: &Config,
        settings: &StandbySettings,
        entropy: &dyn Entropy,
        shutdown: &Shutdown,
    ) -> Result<Self, StandbyError> {
        let kubernetes = config.kubernetes.clone().unwrap_or_default();
        let source = match kubernetes.kubeconfig {
            Some(path) => KubernetesSource::Kubeconfig { path, context: kubernetes.context },
            None => KubernetesSource::InCluster,
        };
        let client = KubernetesApi::connect(&source).await?.client();
        let namespace = config.liqo.agent_namespace.as_str();
        let me = format!("{}-{:08x}", host_name(), entropy.next_u64() >> 32);
        let mut lease = LeaderLease::new(client.clone(), namespace, ACTIVE_LEASE, me, settings.term());
        let route = StandbyRoute::start(config, client.clone());
        let until = win(&mut lease, shutdown).await;
        let Some(until) = until else {
            route.end().await;
            return Err(StandbyError::Stopped);
        };
        let fence = Fence::closed();
        fence.extend_until(until);
        let (replaced, replaced_by) = watch::channel(None);
        let (release, released) = oneshot::channel();
        let (renewing, ended) = mpsc::channel(1);
        let renewing_lease = Renewing { lease, fence: fence.clone(), replaced: replaced.clone(), ended };
        tokio::spawn(renew(renewing_lease, released));
        route.end().await;
        let (secret, image) = StateSecret::take(client.clone(), namespace, &fence, replaced).await?;
        if let Some(image) = image {
            let directory = config.state_dir.clone();
            let restored = tokio::task::spawn_blocking(move || Store::restore(&directory, &image));
            restored.await.map_err(|error| StoreError::Task(error.to_string()))??;
        }
        let address = own_address(config).filter(|_| source == KubernetesSource::InCluster);
        let endpoints = address.map(|address| ActiveEndpoints::of(config, address, client, shutdown.token()));
        let replica: Arc<dyn Replica> = Arc::new(secret);
        Ok(Self { fence, replica: Some(replica), replaced_by, release: Some(release), renewing, endpoints })
    }

    /// Starts the tasks of an active agent: other files of its state are replicated, and Services lead to it.
    pub fn run(&mut self, store: &Store, shutdown: &Shutdown) {
        if self.replica.is_some() {
            shutdown.spawn(replicate_files(store.clone(), shutdown.token()));
        }
        if let Some(endpoints) = self.endpoints.take() {
            shutdown.spawn(endpoints.run());
        }
    }

    /// Waits until another replica is active, and returns its name. Never returns without a standby.
    pub async fn replaced(&self) -> String {
        let mut replaced = self.replaced_by.clone();
        let holder = replaced.wait_for(Option::is_some).await.ok().and_then(|holder| holder.clone());
        match holder {
            Some(holder) => holder,
            None => std::future::pending().await,
        }
    }

    /// Gives the Lease back, so that a standby takes over at once.
    pub async fn release(self) {
        self.fence.close();
        let Some(release) = self.release else { return };
        if release.send(()).is_ok() && tokio::time::timeout(RELEASE_TIMEOUT, self.renewing.closed()).await.is_err() {
            tracing::warn!("the Lease {ACTIVE_LEASE} could not be given back in time; it ends by itself");
        }
    }
}

/// Tries until the Lease is held; `None` if the process stops first.
async fn win(lease: &mut LeaderLease, shutdown: &Shutdown) -> Option<Instant> {
    let (mut known_holder, mut logged) = (None, None);
    loop {
        match lease.try_take().await {
            Ok(Some(until)) => {
                tracing::info!("this replica is the active agent");
                return Some(until);
            }
            Ok(None) => {
                logged = None;
                if known_holder.as_deref() != Some(lease.holder()) {
                    tracing::info!(active = lease.holder(), "this replica is a standby");
                    known_holder = Some(lease.holder().to_owned());
                }
            }
            Err(error) => log_once(&mut logged, &error),
        }
        tokio::select! {
            () = shutdown.triggered() => return None,
            () = tokio::time::sleep(lease.interval()) => {}
        }
    }
}

fn log_once(logged: &mut Option<String>, error: &LeaderLeaseError) {
    let text = error.to_string();
    if logged.as_deref() != Some(text.as_str()) {
        tracing::warn!(error = text, "the Lease cannot be used; is deploy/agent/standby/rbac.yaml applied?");
        *logged = Some(text);
    }
}

struct Renewing {
    lease: LeaderLease,
    fence: Fence,
    replaced: watch::Sender<Option<String>>,
    /// Dropped at the end, which the role notices.
    ended: mpsc::Receiver<()>,
}

/// Renews until released or replaced. While no renewal succeeds the fence closes by itself; it opens again if this
/// replica still holds the Lease then.
async fn renew(renewing: Renewing, mut released: oneshot::Receiver<()>) {
    let Renewing { mut lease, fence, replaced, ended } = renewing;
    let mut logged = None;
    loop {
        tokio::select! {
            // Also if the role was dropped: the agent did not start.
            _ = &mut released => {
                fence.close();
                if let Err(error) = lease.release().await {
                    tracing::warn!(%error, "the Lease was not given back; it ends by itself");
                }
                break;
            }
            () = tokio::time::sleep(lease.interval()) => {}
        }
        match lease.renew().await {
            Ok(Renewed::Until(until)) => {
                fence.extend_until(until);
                logged = None;
            }
            Ok(Renewed::Lost(holder)) => {
                fence.close();
                tracing::error!(active = holder, "another replica is the active agent now");
                replaced.send_replace(Some(holder));
                break;
            }
            Err(error) => log_once(&mut logged, &error),
        }
    }
    drop(ended);
}

async fn replicate_files(store: Store, stop: CancellationToken) {
    let mut logged = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(FILES_INTERVAL) => {}
        }
        match store.replicate().await {
            Ok(()) => logged = None,
            Err(error) => {
                let text = error.to_string();
                if logged.as_deref() != Some(text.as_str()) {
                    tracing::warn!(error = text, "a standby would not have the newest files of the state");
                    logged = Some(text);
                }
            }
        }
    }
}

/// While a gateway is a standby, the pods of its node reach the active gateway as those of other nodes do.
struct StandbyRoute(Option<(CancellationToken, tokio::task::JoinHandle<()>)>);

impl StandbyRoute {
    fn start(config: &Config, client: kube::Client) -> Self {
        if config.fabric.mode != FabricModeName::Tun || !config.fabric.tun.overlay.enabled {
            return Self(None);
        }
        let node_ip = match own_address(config) {
            Some(IpAddr::V4(address)) => Some(address),
            _ => None,
        };
        let (namespace, device) = (config.liqo.agent_namespace.clone(), overlay_device(&config.fabric.tun.name));
        let stop = CancellationToken::new();
        let task = tokio::spawn(follow(client, namespace, device, node_ip, stop.clone()));
        Self(Some((stop, task)))
    }

    /// Removes everything that it made: a gateway has a device of the same name.
    async fn end(self) {
        if let Some((stop, task)) = self.0 {
            stop.cancel();
            if let Err(error) = task.await {
                tracing::warn!(%error, "the standby's route to the gateway did not end cleanly");
            }
        }
    }
}

async fn follow(
    client: kube::Client,
    namespace: String,
    device: String,
    node_ip: Option<Ipv4Addr>,
    stop: CancellationToken,
) {
    if let Err(error) = follower::follow(client, &namespace, &device, node_ip, stop).await {
        tracing::warn!(%error, "pods of this node do not reach the active gateway");
    }
}

/// The pod's address, if it is configured.
fn own_address(config: &Config) -> Option<IpAddr> {
    Some(config.access.listen).filter(|address| !address.is_loopback() && !address.is_unspecified())
}

/// The pod's name, in a pod.
fn host_name() -> String {
    std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "agent".to_owned())
}
