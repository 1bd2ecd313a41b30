//! Wiring: a configuration becomes a running agent.

mod agent_error;
mod agent_platform;
mod reviewers;
mod state_files;
mod tasks;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_fabric::{Fabric, FabricConfig, Fence};
use comity_agent_model::desired::Update;
use comity_agent_model::forward_target::ForwardTarget;
use comity_agent_state::state_copy::StateCopy;
use comity_agent_state::store::{Store, StoreError};
use comity_runtime::{
    AdminServer, BuildInfo, ClientTls, Clock, Entropy, IdentityKey, IdentitySource, Readiness, ReadinessGuard,
    Shutdown, SystemClock, SystemEntropy, TrustedRoots,
};
use tokio::sync::{Notify, watch};

use self::agent_platform::{OfferedNodes, Platform};
use self::tasks::{BrokerAccess, Tasks, UplinkEnds};
use crate::config::{Config, FabricModeName};
use crate::enrollment::join::{JoinInput, Membership, RefusedToken, join_or_load};
use crate::metrics::Metrics;
use crate::mig::mig_keeper::MigChannels;
use crate::observe::Inventory;
use crate::reconcile::fault::CrashPoint;
use crate::reconcile::parts::{Connections, CurrentFailures, Deliveries, Member, Parts, RemapBook, Settling, Tunnels};
use crate::services::local_api;
use crate::services::node_service::Prepared;
use crate::services::nodes::gateway;
use crate::services::policy_follower::policy_at_start;
use crate::standby::ActiveRole;

pub use self::agent_error::AgentError;
pub use self::state_files::{IDENTITY_KEY_FILE, check_state_files};

/// Outage grace until a broker sends one.
const DEFAULT_OUTAGE_GRACE_MS: u64 = 24 * 3_600 * 1_000;
/// How long tasks may take to end.
const DRAIN: Duration = Duration::from_secs(5);

/// A running agent.
pub struct Agent {
    parts: Parts,
    desired: watch::Receiver<Update>,
    readiness: Readiness,
    admin: AdminServer,
    role: ActiveRole,
    socket: PathBuf,
    shutdown: Shutdown,
    /// Kept, because it observes only until it is dropped.
    _inventory: Inventory,
}

/// This cluster as a member of its federation.
struct JoinedCluster {
    federation: String,
    cluster: String,
    key: IdentityKey,
    store: Store,
}

/// Metrics, probes, and the server of both.
struct Observability {
    metrics: Metrics,
    readiness: Readiness,
    admin: AdminServer,
}

/// What an agent runs with, besides its parts.
struct Shell {
    observability: Observability,
    role: ActiveRole,
    shutdown: Shutdown,
    /// Not ready until the uplink is connected.
    uplink: ReadinessGuard,
    crash_points: Vec<CrashPoint>,
}

impl Observability {
    /// Serves metrics and probes; a standby answers them too.
    async fn start(config: &Config, shutdown: &Shutdown) -> Result<Self, AgentError> {
        let registry = prometheus::Registry::new();
        let metrics = Metrics::new(&registry)?;
        let readiness = Readiness::new();
        let build = BuildInfo::of("comity-agent");
        let admin =
            AdminServer::start(config.admin_listen, registry, readiness.clone(), build, shutdown.token()).await?;
        Ok(Self { metrics, readiness, admin })
    }
}

impl Agent {
    /// Joins if it has no identity yet, and starts all tasks. Needs a tokio runtime; returns before a stream is
    /// connected (see [`is_connected`](Self::is_connected)).
    ///
    /// # Errors
    /// [`AgentError`]; nothing is then left running.
    pub async fn start(config: Config) -> Result<Self, AgentError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let entropy: Arc<dyn Entropy> = Arc::new(SystemEntropy);
        config.check()?;
        let state = config.state_dir.clone();
        // Before anything that may wait: for a broker, a disk or an API server.
        tracing::info!(state = %state.display(), "comity-agent {} starts", env!("CARGO_PKG_VERSION"));
        let crash_points = CrashPoint::from_environment(&state)?;
        let shutdown = Shutdown::new();
        // From here on a failure ends the started tasks.
        let unfinished = shutdown.token().drop_guard();
        let observability = Observability::start(&config, &shutdown).await?;
        let mut role = match &config.standby {
            Some(settings) => ActiveRole::wait(&config, settings, entropy.as_ref(), &shutdown).await?,
            None => ActiveRole::alone(),
        };
        role.show(observability.metrics.active.clone(), &shutdown);
        // A standby is ready, an agent that joins is not.
        let uplink = observability.readiness.guard("uplink");
        let (store, key) = open_state(&state, role.copy.clone(), entropy.as_ref())?;
        // Before joining: what is wrong here must not cost the single-use token.
        let platform = Platform::connect(&config, &clock, &entropy).await?;
        let (joined, access) = Self::join(&config, store, key, &clock, &entropy).await?;
        // The single-use token is spent: a standby needs the identity from now on.
        joined.store.write_copy().await?;
        role.run(&joined.store, &shutdown);
        let fence = role.fence.clone();
        platform.follow_policies(&config, &clock, observability.metrics.missing_policies.clone(), &shutdown).await;
        let parts = Self::prepare(&config, joined, &platform, fence, &clock, &entropy, &shutdown).await?;
        let shell = Shell { observability, role, shutdown, uplink, crash_points };
        let agent = Self::run(config, access, shell, parts, platform).await?;
        unfinished.disarm();
        Ok(agent)
    }

    /// Joins unless an identity exists that the configured token brought.
    async fn join(
        config: &Config,
        store: Store,
        key: IdentityKey,
        clock: &Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
    ) -> Result<(JoinedCluster, BrokerAccess), AgentError> {
        let token = config.join_token_file.as_ref();
        let Membership { directory, identity, brokers } = join_or_load(JoinInput {
            state: &config.state_dir,
            token,
            refused: RefusedToken::IsIgnored,
            brokers: &config.brokers,
            key: &key,
            store: Some(&store),
            voucher: config.voucher.as_ref(),
            clock: clock.as_ref(),
            entropy: entropy.as_ref(),
        })
        .await?;
        let cluster = identity.id().as_cluster().map(ToString::to_string).ok_or_else(|| AgentError::NotACluster {
            path: directory.path().to_owned(),
            id: identity.id().to_string(),
        })?;
        store.bind(&identity.id().to_string()).await?;
        let federation = identity.id().trust_domain().to_string();
        let source = IdentitySource::new(identity);
        let tls = ClientTls::new(TrustedRoots::of(&source), source.subscribe());
        Ok((JoinedCluster { federation, cluster, key, store }, BrokerAccess { directory, source, brokers, tls }))
    }

    /// Binds the fabric, and starts the tasks of this cluster's nodes.
    async fn prepare(
        config: &Config,
        joined: JoinedCluster,
        platform: &Platform,
        fence: Fence,
        clock: &Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
        shutdown: &Shutdown,
    ) -> Result<Parts, AgentError> {
        let JoinedCluster { federation, cluster, key, store } = joined;
        let fabric = FabricConfig { listen: config.fabric.listen, mode: config.fabric.fabric_mode() };
        let fabric = Fabric::bind_fenced(fabric, fence.clone()).await?;
        let endpoints = config.fabric_endpoints(fabric.local_addr());
        if endpoints.is_empty() {
            tracing::warn!(
                "no fabric.endpoints are configured: this cluster can borrow, but nobody can reach it to borrow from it"
            );
        }
        let signed = policy_at_start(&store, &config.state_dir, &config.signed_policy).await?;
        let nodes = match &platform.api {
            Some(api) => Prepared::check(config, api, &store, &platform.salt, clock, &fence, shutdown).await?,
            None => Prepared::none("there is no Kubernetes here"),
        };
        let parts = Parts {
            member: Arc::new(Member {
                federation,
                cluster,
                identity: key,
                voucher: config.voucher,
                pins: config.pins(),
                endpoints,
                network: nodes.network.clone(),
                entropy: Arc::clone(entropy),
            }),
            remap_book: Arc::new(RemapBook::open(store.clone())?),
            store,
            fence,
            tunnels: Arc::new(Tunnels::new(fabric, Duration::from_secs(config.fabric.keepalive_seconds))),
            deliveries: Arc::new(Deliveries {
                lends: config.sharing.enabled,
                donor: Arc::clone(&platform.donor),
                origin: Arc::clone(&platform.origin),
                access: config.access.clone(),
                virtual_nodes: nodes.nodes.clone(),
                guest_policies: platform.policies.subscribe(),
                node_service: nodes.service.clone(),
                mig: platform.mig.as_ref().map(MigChannels::book),
                cleaner: platform.cleaner(config, clock),
            }),
            connections: Arc::new(Connections::default()),
            settling: Arc::new(Settling::default()),
            failures: Arc::new(CurrentFailures::default()),
            revoked: watch::Sender::default(),
            networks: watch::Sender::default(),
            saved: watch::Sender::default(),
            uses: watch::Sender::default(),
            signed_policy: watch::Sender::new(signed),
            policy_turn: Arc::default(),
            clock: Arc::clone(clock),
            entropy: Arc::clone(entropy),
        };

        nodes.run(&parts, shutdown);
        if let (FabricModeName::Tun, true, Some(api)) =
            (config.fabric.mode, config.fabric.tun.overlay.enabled, &platform.api)
        {
            let namespace = config.liqo.agent_namespace.clone();
            let (member, tunnels) = (Arc::clone(&parts.member), Arc::clone(&parts.tunnels));
            let stop = shutdown.token();
            let publishing = gateway::run(member, tunnels, api.client(), namespace, stop.clone());
            shutdown.spawn(parts.fence.clone().hold(stop, publishing));
        }
        Ok(parts)
    }

    /// Starts the local API and the tasks that depend on brokers.
    async fn run(
        config: Config,
        access: BrokerAccess,
        shell: Shell,
        parts: Parts,
        mut platform: Platform,
    ) -> Result<Self, AgentError> {
        let outage_grace_ms = outage_grace(&parts.store)?;
        let Shell { observability: Observability { metrics, readiness, admin }, role, shutdown, uplink, crash_points } =
            shell;
        let (desired_sender, desired) = watch::channel(Update::default());
        let OfferedNodes { nodes, unproved } = platform.offered_nodes(&config, &parts, &shutdown);
        let devices = platform.inventory.devices();
        let shown = local_api::Shown {
            parts: parts.clone(),
            desired: desired.clone(),
            network_policies: config.network_policies(),
            unproved,
            devices,
        };
        let api = local_api::serve(&config.state_dir, shown, shutdown.token())?;
        shutdown.spawn(async move { drop(api.await) });
        let ends = UplinkEnds {
            desired: desired_sender,
            outage_grace_ms: watch::Sender::new(outage_grace_ms),
            resync: Arc::new(Notify::new()),
            readiness: uplink,
        };
        let mig = platform.mig.take();
        let tasks = Tasks {
            config: &config,
            parts: &parts,
            platform: &platform,
            metrics: &metrics,
            desired: &desired,
            shutdown: &shutdown,
        };
        tasks.carry_out_leases(mig, crash_points, &ends)?;
        tasks.look_after_pods(&access);
        tasks.keep_in_touch(access, ends, nodes);
        let (cluster, fabric) = (&parts.member.cluster, parts.tunnels.fabric.local_addr());
        tracing::info!(cluster, %fabric, admin = %admin.local_addr(), "the agent runs");
        let (socket, _inventory) = (config.state_dir.join(local_api::SOCKET), platform.inventory);
        Ok(Self { parts, desired, readiness, admin, role, socket, shutdown, _inventory })
    }

    /// This cluster's id.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.parts.member.cluster
    }

    /// Whether a stream to a broker is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.desired.borrow().is_live
    }

    /// Waits until a stream to a broker is connected and has delivered a desired state.
    pub async fn connected(&self) {
        let mut desired = self.desired.clone();
        // Without a sender the uplink has ended, and no stream will connect.
        if desired.wait_for(|update| update.is_live && update.state.is_some()).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether every part is ready, as on `/readyz`.
    #[must_use]
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Where metrics and probes are served.
    #[must_use]
    pub fn admin_addr(&self) -> std::net::SocketAddr {
        self.admin.local_addr()
    }

    /// Where the fabric's port for donors leads: this cluster's API server, or the API of a host without Kubernetes.
    #[must_use]
    pub fn api_target(&self) -> ForwardTarget {
        self.parts.deliveries.donor.api_target()
    }

    /// The local API's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Waits until another replica is the active agent, and returns its name. Never returns without a standby.
    pub async fn replaced(&self) -> String {
        self.role.replaced().await
    }

    /// Stops, and returns when all tasks have ended. Objects of leases stay: stopping an agent ends no work.
    pub async fn shutdown(self) {
        if let comity_runtime::shutdown::Drained::TimedOut { remaining } = self.shutdown.drain(DRAIN).await {
            tracing::warn!(remaining, "some tasks did not end in time");
        }
        self.parts.connections.clear();
        self.parts.tunnels.close_exposures();
        self.admin.stopped().await;
        let Parts { tunnels, store, .. } = self.parts;
        match Arc::try_unwrap(tunnels) {
            Ok(tunnels) => tunnels.into_fabric().shutdown().await,
            Err(_) => tracing::debug!("a task still holds the fabric, which ends with that task"),
        }
        // Last: until here this replica may have forwarded packets.
        self.role.hand_over(&store).await;
    }
}

/// Opens the store, and loads or makes the identity key.
fn open_state(
    state: &Path,
    copy: Option<Arc<dyn StateCopy>>,
    entropy: &dyn Entropy,
) -> Result<(Store, IdentityKey), AgentError> {
    check_state_files(state)?;
    let store = Store::open_with(state, copy)?;
    Ok((store, IdentityKey::load_or_generate(&state.join(IDENTITY_KEY_FILE), entropy)?))
}

fn outage_grace(store: &Store) -> Result<u64, StoreError> {
    let kept = store.kept("outage-grace-ms")?;
    let bytes = kept.and_then(|bytes| <[u8; 8]>::try_from(bytes.as_slice()).ok());
    Ok(bytes.map_or(DEFAULT_OUTAGE_GRACE_MS, u64::from_be_bytes))
}
