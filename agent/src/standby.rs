//! Several replicas of one agent: one is active, the others wait until they may continue its work.
//!
//! ```text
//! Lease comity-agent ─▶ fence                      who may act, and until when
//! Secret comity-agent-state ─▶ state directory     keys, certificate, records: written before they take effect
//! EndpointSlices ─▶ Services                       the address of the active one
//! ```
//!
//! A replica that waits has no part in the federation. It reads its predecessor's state only when it holds the Lease,
//! and its first write makes every later write of the predecessor fail.

mod active_endpoints;
mod active_gauge;
mod active_lease;
mod standby_route;
mod state_secret;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_fabric::Fence;
use comity_agent_kubernetes::api::{KubernetesApi, KubernetesApiError, KubernetesSource};
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_kubernetes::leader_lease::LeaderLease;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_state::state_copy::StateCopy;
use comity_agent_state::store::{Store, StoreError};
use comity_runtime::{Entropy, Shutdown};
use prometheus::IntGauge;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, StandbySettings};
use active_lease::HeldLease;
use standby_route::StandbyRoute;
use state_secret::StateSecret;

pub use active_endpoints::ActiveEndpoints;
pub use state_secret::SECRET as STATE_SECRET;

/// Name of the Lease.
pub const ACTIVE_LEASE: &str = "comity-agent";
/// How often files of the state directory are compared with the state copy; records are written at once.
const FILES_INTERVAL: Duration = Duration::from_secs(5);
/// How long the last write of the state copy may take.
const LAST_COPY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a replica cannot become active.
#[derive(Debug, thiserror::Error)]
pub enum StandbyError {
    /// The Kubernetes API.
    #[error(transparent)]
    Kubernetes(#[from] KubernetesApiError),
    /// The state copy cannot be read.
    #[error("{0}; apply deploy/agent/standby/rbac.yaml, or leave out the section standby")]
    State(#[from] DeliveryError),
    /// It cannot be put into the state directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The process stops.
    #[error("stopped while it waited as a standby")]
    Stopped,
}

/// Parts that only the active replica has: the Lease, the open fence, and the writer of the state copy.
pub struct ActiveRole {
    /// Closed once another replica may be active.
    pub fence: Fence,
    /// Copy of the store's state; absent: this agent has no standby.
    pub copy: Option<Arc<dyn StateCopy>>,
    /// The holder of the Lease, once that is another replica.
    replaced_by: watch::Receiver<Option<String>>,
    lease: Option<HeldLease>,
    endpoints: Option<ActiveEndpoints>,
}

impl ActiveRole {
    /// The role of an agent without a standby.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            fence: Fence::always_open(),
            copy: None,
            replaced_by: watch::channel(None).1,
            lease: None,
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
        let until = active_lease::win(&mut lease, shutdown).await;
        let Some(until) = until else {
            route.end().await;
            return Err(StandbyError::Stopped);
        };
        let fence = Fence::closed();
        fence.extend_until(until);
        let (replaced, replaced_by) = watch::channel(None);
        let held = HeldLease::keep(lease, fence.clone(), replaced.clone());
        route.end().await;
        let (secret, image) = StateSecret::take(client.clone(), namespace, &fence, replaced).await?;
        if let Some(image) = image {
            let directory = config.state_dir.clone();
            let restored = tokio::task::spawn_blocking(move || Store::restore(&directory, &image));
            restored.await.map_err(|error| StoreError::Task(error.to_string()))??;
        }
        let address = own_address(config).filter(|_| source == KubernetesSource::InCluster);
        let endpoints = address.map(|address| ActiveEndpoints::of(config, address, client));
        let copy: Arc<dyn StateCopy> = Arc::new(secret);
        Ok(Self { fence, copy: Some(copy), replaced_by, lease: Some(held), endpoints })
    }

    /// Shows in a metric whether this replica is active, until the agent stops.
    pub fn show(&self, active: IntGauge, shutdown: &Shutdown) {
        shutdown.spawn(active_gauge::show(self.fence.clone(), active, shutdown.token()));
    }

    /// Starts the tasks of an active agent: other files of its state are copied, and Services lead to it.
    pub fn run(&mut self, store: &Store, shutdown: &Shutdown) {
        if self.copy.is_some() {
            shutdown.spawn(copy_files(store.clone(), shutdown.token()));
        }
        if let Some(endpoints) = self.endpoints.take() {
            let stop = shutdown.token();
            shutdown.spawn(self.fence.clone().hold(stop.clone(), endpoints.run(stop)));
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

    /// Copies the state a last time and gives the Lease back, so that a standby takes over at once, with everything.
    pub async fn hand_over(self, store: &Store) {
        if self.copy.is_some() && self.fence.is_open() {
            copy_last(store).await;
        }
        self.fence.close();
        if let Some(lease) = self.lease {
            lease.give_back().await;
        }
    }
}

async fn copy_last(store: &Store) {
    match tokio::time::timeout(LAST_COPY_TIMEOUT, store.write_copy()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the successor does not have the newest files of the state"),
        Err(_) => tracing::warn!("the state was not copied in time; the successor may not have its newest files"),
    }
}

async fn copy_files(store: Store, stop: CancellationToken) {
    let mut failures = FailureLog::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(FILES_INTERVAL) => {}
        }
        match store.write_copy().await {
            Ok(()) => failures.cleared(STATE_SECRET),
            Err(error) => {
                if failures.is_new(STATE_SECRET, &error.to_string()) {
                    tracing::warn!(%error, "a standby would not have the newest files of the state");
                }
            }
        }
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Mutex;

    use comity_agent_state::state_copy::StateCopyError;

    use super::*;

    #[derive(Default)]
    struct NewestImage(Mutex<Option<Vec<u8>>>);

    impl StateCopy for NewestImage {
        fn put(&self, image: &[u8]) -> Result<(), StateCopyError> {
            *self.0.lock().unwrap() = Some(image.to_vec());
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_handover_leaves_the_newest_files_to_the_successor() {
        let home = tempfile::tempdir().unwrap();
        let (first, second) = (home.path().join("first"), home.path().join("second"));
        let newest = Arc::new(NewestImage::default());
        let copy: Arc<dyn StateCopy> = Arc::<NewestImage>::clone(&newest);
        let store = Store::open_with(&first, Some(Arc::clone(&copy))).unwrap();
        std::fs::write(first.join("brokers"), "a:1").unwrap();
        let role = || ActiveRole { copy: Some(Arc::clone(&copy)), ..ActiveRole::alone() };

        let fenced = role();
        fenced.fence.close();
        fenced.hand_over(&store).await;
        assert!(newest.0.lock().unwrap().is_none(), "a successor may write it already");

        let active = role();
        let fence = active.fence.clone();
        active.hand_over(&store).await;
        assert!(!fence.is_open());
        let image = newest.0.lock().unwrap().take().unwrap();
        Store::restore(&second, &image).unwrap();
        assert_eq!(std::fs::read_to_string(second.join("brokers")).unwrap(), "a:1");
    }
}
