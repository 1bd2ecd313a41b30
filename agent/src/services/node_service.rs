//! Virtual nodes of this cluster: checks Liqo once at the start, builds both sides, and runs their tasks as long as the
//! agent does.
//!
//! If Liqo is invalid, this cluster neither lends nor borrows virtual nodes, and says in one sentence what to do. It
//! still lends namespaces.

mod donor;
mod guest_networks;
mod network_keeper;

use std::sync::Arc;
use std::time::Duration;

use comity_agent_delivery::{NodeBorrower, VirtualNodeDonor, VirtualNodes};
use comity_agent_fabric::Fence;
use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_liqo::donor::{Grants, Installation, InstallationSettings, PeerNetworks, check_installation};
use comity_agent_liqo::network::{LiqoNetwork, NetworkSettings};
use comity_agent_liqo::origin::{DonorLine, LiqoOrigin, MaintenanceSettings, NamespaceMapping, OriginSettings};
use comity_agent_model::api_port::API_PORT;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::node_id::NodeSalt;
use comity_agent_model::node_service::{Authentication, NodeService};
use comity_agent_state::record::LiqoRecord;
use comity_agent_state::store::{Store, StoreError};
use comity_proto::v1;
use comity_runtime::{Clock, Shutdown};
use comity_types::Side;
use futures::future::BoxFuture;
use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, FabricModeName, LiqoAuthentication, LiqoNetworkName, LiqoSettings};
use crate::reconcile::parts;

/// How long a cluster that does not answer is retried at the start.
const OBSERVE_TIMEOUT: Duration = Duration::from_secs(60);
const LIQO_RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// How long the other end of a tunnel may take to answer.
const LINE_PATIENCE: Duration = Duration::from_millis(1_500);
/// How long Liqo's controllers may take to remove an object of a network.
const NETWORK_PATIENCE: Duration = Duration::from_secs(60);
/// Store key of this cluster's network. Every key bundle signs the network, so it must not change because a read
/// failed.
const OWN_NETWORK_KEY: &str = "own-network";

/// The donor's side.
pub struct DonorSide {
    /// The part that the steps use.
    pub side: Arc<dyn VirtualNodeDonor>,
    /// Whether it may lend, or why not.
    pub health: watch::Receiver<Result<(), String>>,
}

/// Virtual nodes before the agent runs.
pub struct Prepared {
    /// The network that other clusters must know; absent without Liqo.
    pub network: Option<v1::ClusterNetwork>,
    /// Both sides; absent without Liqo.
    pub nodes: Option<VirtualNodes>,
    /// Whether this cluster can lend and borrow virtual nodes now.
    pub service: watch::Receiver<NodeService>,
    parts: Option<NodeParts>,
    publish: watch::Sender<NodeService>,
}

struct NodeParts {
    api: KubernetesApi,
    origin: LiqoOrigin,
    /// Namespace of Liqo's controllers.
    liqo_namespace: String,
    /// Present if Liqo's network carries pods.
    network: Option<LiqoNetwork>,
    health: watch::Receiver<Result<(), String>>,
    peer_networks: watch::Sender<Option<Arc<PeerNetworks>>>,
}

impl Prepared {
    /// A cluster that neither lends nor borrows virtual nodes, with the reason.
    #[must_use]
    pub fn none(reason: &str) -> Self {
        let (publish, service) = watch::channel(NodeService::none(reason));
        Self { network: None, nodes: None, service, parts: None, publish }
    }

    fn without(reason: &str) -> Self {
        tracing::error!(
            reason,
            "this cluster neither lends nor borrows virtual nodes until that is corrected and the agent is \
             restarted; namespaces are still lent"
        );
        Self::none(reason)
    }

    /// Checks Liqo and builds both sides. Ends within two minutes in every case.
    ///
    /// # Errors
    /// [`StoreError`]; the service reports errors of Liqo.
    pub async fn check(
        config: &Config,
        api: &KubernetesApi,
        store: &Store,
        salt: &NodeSalt,
        clock: &Arc<dyn Clock>,
        fence: &Fence,
        shutdown: &Shutdown,
    ) -> Result<Self, StoreError> {
        let settings = &config.liqo;
        if !settings.enabled {
            return Ok(Self::none("liqo.enabled is not set"));
        }
        let origin = LiqoOrigin::new(api.client(), origin_settings(config));
        // Before the check, because this corrects a value that the check refuses.
        if let Some(Err(error)) = fence.while_open(origin.ensure_virtual_kubelet_options()).await {
            tracing::warn!(%error, "cannot set the options of virtual kubelets yet");
        }
        let ObservedLiqo { network, installation } =
            match observe_liqo(config, api, &origin, store, clock.as_ref()).await? {
                Ok(observed) => observed,
                Err(reason) => return Ok(Self::without(&reason)),
            };
        let liqo_network = LiqoNetwork::new(api.client(), network_settings(settings, &network));
        let refused = match check_mode(config) {
            Ok(()) if network.liqo_network => check_network(&liqo_network, clock.as_ref()).await,
            checked => checked,
        };
        if let Err(reason) = &refused {
            tracing::error!(
                reason,
                "this cluster neither lends nor borrows virtual nodes until that is corrected and the agent is \
                 restarted"
            );
        }
        // Complete before anybody reads them: a lease that is missing here is granted nothing.
        let (publish_grants, grants) = watch::channel(Arc::new(store.records().grants()));
        shutdown.spawn(follow_grants(store.clone(), publish_grants, shutdown.token()));
        let (peer_networks, watched) = watch::channel(None);
        let own =
            donor::OwnCluster { network: &network, installation: &installation, salt, clock, peer_networks: watched };
        let donor = donor::start(config, api, own, grants, fence, shutdown).await;
        let DonorSide { side, health } = match donor {
            Ok(donor) => donor,
            Err(error) => return Ok(Self { network: Some(network), ..Self::without(&error.to_string()) }),
        };
        let mut parts = Self::none("not checked yet");
        parts.publish.send_replace(NodeService {
            lends: refused.clone().and_then(|()| health.borrow().clone()),
            borrows: refused,
            authentication: Authentication {
                by_token: settings.authentication == LiqoAuthentication::Token,
                rotation_ms: settings.token_rotation_seconds.saturating_mul(1_000),
            },
            needs_tun: settings.require_tun,
            peer_networks: settings.peer_networks.clone(),
            peer_api_servers: settings.peer_api_servers.clone(),
            remaps: check_remapping(config),
        });
        let applied = network.liqo_network.then(|| liqo_network.clone());
        parts.network = Some(network);
        let borrower = NodeBorrower::new(origin.clone(), config.guest_policies(api.client(), Arc::clone(clock)));
        let nodes = VirtualNodes { donor: side, origin: Arc::new(borrower), network: liqo_network };
        parts.nodes = Some(nodes);
        let liqo_namespace = settings.namespace.clone();
        parts.parts =
            Some(NodeParts { api: api.clone(), origin, liqo_namespace, network: applied, health, peer_networks });
        Ok(parts)
    }

    /// Starts the tasks of virtual nodes, which run as long as the agent does.
    pub fn run(self, parts: &parts::Parts, shutdown: &Shutdown) {
        let Some(NodeParts { api, origin, liqo_namespace, network, health, peer_networks }) = self.parts else {
            return;
        };
        let (stop, fence) = (shutdown.token(), &parts.fence);
        shutdown.spawn(guest_networks::follow(parts.clone(), peer_networks, stop.clone()));
        if let Some(network) = network {
            let keeper = network_keeper::keep(parts.clone(), network, stop.clone());
            shutdown.spawn(fence.clone().hold(stop.clone(), keeper));
        }
        let reach = crate::services::reach::run(parts.clone(), api.client(), liqo_namespace, stop.clone());
        shutdown.spawn(fence.clone().hold(stop.clone(), reach));
        let maintaining = stop.clone();
        let line = Arc::new(DonorTunnels { store: parts.store.clone(), tunnels: Arc::clone(&parts.tunnels) });
        let maintenance = async move { origin.maintain(MaintenanceSettings::default(), line, maintaining).await };
        shutdown.spawn(fence.clone().hold(stop.clone(), maintenance));
        shutdown.spawn(follow_health(health, self.publish, stop));
    }
}

/// The tunnels to donors, as lines to their pods.
struct DonorTunnels {
    store: Store,
    tunnels: Arc<parts::Tunnels>,
}

impl DonorLine for DonorTunnels {
    fn answers<'a>(&'a self, donor: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let records = self.store.records();
            let to_donor = |record: &LiqoRecord| record.side == Side::Origin && record.liqo_id == donor;
            let peering = records.liqo.iter().find(|(_, record)| to_donor(record)).map(|(peering, _)| *peering);
            let tunnel = peering.and_then(|peering| self.tunnels.peer(peering));
            let Some(tunnel) = tunnel else { return false };
            // The donor's agent accepts the connection even if its API server is down.
            tunnel.connect_within(API_PORT, LINE_PATIENCE).await.is_ok()
        })
    }
}

/// Publishes the grants from the records, whenever they change.
async fn follow_grants(store: Store, grants: watch::Sender<Arc<Grants>>, stop: CancellationToken) {
    let mut records = store.subscribe();
    loop {
        let now = records.borrow_and_update().grants();
        grants.send_if_modified(|before| {
            let differs = **before != now;
            if differs {
                *before = Arc::new(now);
            }
            differs
        });
        tokio::select! {
            () = stop.cancelled() => return,
            changed = records.changed() => if changed.is_err() { return },
        }
    }
}

/// Without its policies a donor lends nothing new, and its offer says so.
async fn follow_health(
    mut health: watch::Receiver<Result<(), String>>,
    publish: watch::Sender<NodeService>,
    stop: CancellationToken,
) {
    loop {
        let now = health.borrow_and_update().clone();
        publish.send_if_modified(|service| {
            // The operator's settings override the observed state.
            let lends = service.borrows.clone().and(now);
            if service.lends == lends {
                return false;
            }
            match &lends {
                Ok(()) => tracing::info!("this cluster lends virtual nodes"),
                Err(reason) => tracing::warn!(reason, "this cluster lends no virtual nodes now"),
            }
            service.lends = lends;
            true
        });
        tokio::select! {
            () = stop.cancelled() => return,
            changed = health.changed() => if changed.is_err() { return },
        }
    }
}

fn origin_settings(config: &Config) -> OriginSettings {
    let settings = &config.liqo;
    OriginSettings {
        default_tenant: config.burst.default_tenant.clone(),
        liqo_namespace: settings.namespace.clone(),
        agent_namespace: settings.agent_namespace.clone(),
        pod_cidrs: settings.pod_cidrs.iter().map(ToString::to_string).collect(),
        liqo_network: settings.network == LiqoNetworkName::Liqo,
        mapping: match settings.same_namespace_names {
            true => NamespaceMapping::EnforceSameName,
            false => NamespaceMapping::DefaultName,
        },
        ..OriginSettings::default()
    }
}

fn network_settings(settings: &LiqoSettings, own: &v1::ClusterNetwork) -> NetworkSettings {
    NetworkSettings {
        liqo_namespace: settings.namespace.clone(),
        liqo_version: own.liqo_version.clone(),
        gateway: settings.gateway.clone(),
        patience: NETWORK_PATIENCE,
    }
}

/// Whether Liqo can connect its network; retried until the cluster answers.
async fn check_network(network: &LiqoNetwork, clock: &dyn Clock) -> Result<(), String> {
    let began = clock.elapsed();
    loop {
        let error = match network.check_installed().await {
            Ok(()) => return Ok(()),
            Err(DeliveryError::Permanent { message, .. }) => return Err(message),
            Err(error) => error,
        };
        if clock.elapsed().saturating_sub(began) >= OBSERVE_TIMEOUT {
            return Err(error.to_string());
        }
        tracing::info!(%error, "cannot read Liqo's network yet");
        clock.sleep(LIQO_RETRY_INTERVAL).await;
    }
}

fn check_mode(config: &Config) -> Result<(), String> {
    if config.liqo.network == LiqoNetworkName::Liqo
        && config.liqo.require_tun
        && config.fabric.mode != FabricModeName::Tun
    {
        let remedy = "set fabric.mode: tun, or liqo.requireTun: false where API servers of all clusters are reached \
            without a fabric";
        return Err(format!("fabric.mode is netstack, which gives Liqo no route to a donor's API server; {remedy}"));
    }
    if config.liqo.require_tun && config.fabric.mode != FabricModeName::Tun {
        let remedy = "set fabric.mode: tun, or liqo.requireTun: false where pods and API servers of all clusters reach \
            each other without a fabric";
        return Err(format!("fabric.mode is netstack, which carries no pods; {remedy}"));
    }
    Ok(())
}

/// Whether pods of clusters with the same addresses can be carried; otherwise what to set for that.
pub(crate) fn check_remapping(config: &Config) -> Result<(), String> {
    match config {
        Config { fabric, .. } if fabric.mode != FabricModeName::Tun => Err("set fabric.mode: tun".to_owned()),
        Config { fabric, .. } if fabric.tun.remap.is_empty() => Err("name a network in fabric.tun.remap".to_owned()),
        Config { webhook: None, .. } => Err("configure webhook".to_owned()),
        _ => Ok(()),
    }
}

/// The observed Liqo.
struct ObservedLiqo {
    network: v1::ClusterNetwork,
    installation: Result<Installation, String>,
}

/// Reads Liqo until the cluster answers. If it does not, the stored network is used.
async fn observe_liqo(
    config: &Config,
    api: &KubernetesApi,
    origin: &LiqoOrigin,
    store: &Store,
    clock: &dyn Clock,
) -> Result<Result<ObservedLiqo, String>, StoreError> {
    let settings = InstallationSettings { namespace: config.liqo.namespace.clone(), ..InstallationSettings::default() };
    let client = api.client();
    let began = clock.elapsed();
    let (found, installation) = loop {
        let error = match tokio::join!(origin.own_network(), check_installation(&client, &settings)) {
            (Ok(found), Ok(installation)) => break (found, Ok(installation)),
            (Ok(found), Err(DeliveryError::Permanent { message, .. })) => break (found, Err(message)),
            (Err(DeliveryError::Permanent { message, .. }), _) => return Ok(Err(message)),
            (Err(error), _) | (_, Err(error)) => error,
        };
        if clock.elapsed().saturating_sub(began) >= OBSERVE_TIMEOUT {
            let kept = store.kept(OWN_NETWORK_KEY)?.and_then(|bytes| v1::ClusterNetwork::decode(bytes.as_slice()).ok());
            let reason = error.to_string();
            return Ok(kept.map(|network| ObservedLiqo { network, installation: Err(reason.clone()) }).ok_or(reason));
        }
        tracing::info!(%error, "cannot read Liqo yet");
        clock.sleep(LIQO_RETRY_INTERVAL).await;
    };
    let advertised = installation.as_ref().ok().and_then(|installation| installation.api_server.as_deref());
    let network = v1::ClusterNetwork {
        pod_cidrs: found.pod_cidrs,
        api_server: match (config.liqo.api_server.as_str(), advertised) {
            ("", Some(advertised)) => host_port(advertised),
            ("", None) => host_port(api.url()),
            (configured, _) => configured.to_owned(),
        },
        liqo_cluster_id: found.liqo_cluster_id,
        liqo_version: found.liqo_version,
        tun: config.fabric.mode == FabricModeName::Tun,
        liqo_network: config.liqo.network == LiqoNetworkName::Liqo,
    };
    if let Err(error) = crate::keys::bundle::check_network("this cluster", &network) {
        return Ok(Err(error.to_string()));
    }
    store.keep(OWN_NETWORK_KEY, network.encode_to_vec()).await?;
    Ok(Ok(ObservedLiqo { network, installation }))
}

/// "host:port" of an https address.
fn host_port(url: &str) -> String {
    let host = url.trim_start_matches("https://").split('/').next().unwrap_or_default();
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { host.to_owned() } else { format!("{host}:443") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_host_and_port_also_where_the_port_is_left_out() {
        assert_eq!(host_port("https://10.0.0.1:6443/"), "10.0.0.1:6443");
        assert_eq!(host_port("https://api.example.org"), "api.example.org:443");
        assert_eq!(host_port("10.0.0.1:6443"), "10.0.0.1:6443");
    }

    #[tokio::test]
    async fn deliveries_follow_the_health_but_not_above_what_the_operator_set() {
        for (operator, wants) in [(Ok(()), [1, 2, 1]), (Err("fabric.mode is netstack".to_owned()), [1, 1, 1])] {
            let (health, seen) = watch::channel(Err("not checked yet".to_owned()));
            let service = NodeService {
                lends: Err("not checked yet".to_owned()),
                borrows: operator,
                authentication: Authentication::default(),
                needs_tun: true,
                peer_networks: Vec::new(),
                peer_api_servers: std::collections::BTreeMap::new(),
                remaps: Ok(()),
            };
            let (publish, mut service) = watch::channel(service);
            let stop = CancellationToken::new();
            let task = tokio::spawn(follow_health(seen, publish, stop.clone()));
            for (now, count) in
                [Err("not there".to_owned()), Ok(()), Err("taken away".to_owned())].into_iter().zip(wants)
            {
                health.send_replace(now).ok();
                let waited = service.wait_for(|service| service.deliveries().len() == count);
                assert!(tokio::time::timeout(Duration::from_secs(5), waited).await.is_ok(), "want {count} deliveries");
            }
            stop.cancel();
            assert!(task.await.is_ok());
        }
    }
}
