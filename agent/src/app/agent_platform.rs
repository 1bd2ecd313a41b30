//! The cluster of the agent: Kubernetes, or a host with an inventory file.

use std::sync::Arc;

use comity_agent_delivery::{
    DonorDelivery, NamespaceDelivery, NodeCleaner, OriginDelivery, OriginFile, OriginSecret, PolicyProblems,
};
use comity_agent_kubernetes::api::{KubernetesApi, KubernetesSource};
use comity_agent_model::lent::LentLeases;
use comity_agent_model::node_id::NodeSalt;
use comity_agent_model::nodes::Nodes;
use comity_agent_site::SiteDelivery;
use comity_runtime::{Clock, Entropy, Shutdown};
use prometheus::IntGauge;
use tokio::sync::watch;

use super::agent_error::AgentError;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::mig::mig_keeper::MigChannels;
use crate::observe::file::RunsPods;
use crate::observe::kubernetes::{DeviceReaders, ObserverOptions};
use crate::observe::{self, Inventory, InventorySettings, PLACEHOLDER_NAMESPACE};
use crate::reconcile::parts::Parts;
use crate::services::canary::{self, CANARY_NAMESPACE, CanaryContext, CanaryResults, Unproved};
use crate::services::device_conflicts::{self, ConflictContext};
use crate::services::drift::{self, DriftContext};
use crate::services::lending::{self, PolicyLook};
use crate::services::placeholders::{self, PlaceholderContext};

/// Parts that depend on the kind of cluster.
pub(super) struct Platform {
    pub(super) donor: Arc<dyn DonorDelivery>,
    pub(super) origin: Arc<dyn OriginDelivery>,
    pub(super) inventory: Inventory,
    pub(super) salt: NodeSalt,
    /// Channels to the observer, where the agent cuts MIG devices.
    pub(super) mig: Option<MigChannels>,
    /// Its API server; absent on a host without Kubernetes.
    pub(super) api: Option<KubernetesApi>,
    /// Receives the leases in force, which the inventory needs.
    pub(super) lent: watch::Sender<LentLeases>,
    /// Policies of guests that are not in force.
    pub(super) policies: watch::Sender<PolicyProblems>,
}

/// The nodes of the offer, and those that may not lend yet.
pub(super) struct OfferedNodes {
    pub(super) nodes: watch::Receiver<Nodes>,
    pub(super) unproved: watch::Receiver<Unproved>,
}

impl Platform {
    /// Connects to the cluster that the configuration names.
    pub(super) async fn connect(
        config: &Config,
        clock: &Arc<dyn Clock>,
        entropy: &Arc<dyn Entropy>,
    ) -> Result<Self, AgentError> {
        let state = &config.state_dir;
        let salt = NodeSalt::load_or_create(state, entropy.as_ref())?;
        let settings = InventorySettings { salt: salt.clone(), reserve: config.reserve, rdma: config.rdma.clone() };
        if let Some(file) = &config.inventory_file {
            let site = config.site.clone();
            let runs_pods = if site.is_some() { RunsPods::Here } else { RunsPods::Nowhere };
            let inventory = observe::file::observe(file, settings, runs_pods).await?;
            let donor = SiteDelivery::start(state, site, Arc::clone(clock), Arc::clone(entropy)).await?;
            let origin = Arc::new(OriginFile::open(state)?);
            let lent = watch::Sender::default();
            let (donor, policies) = (Arc::new(donor), watch::Sender::default());
            return Ok(Self { donor, origin, inventory, salt, mig: None, api: None, lent, policies });
        }
        let kubernetes = config.kubernetes.clone().unwrap_or_default();
        let source = match kubernetes.kubeconfig {
            Some(path) => KubernetesSource::Kubeconfig { path, context: kubernetes.context },
            None => KubernetesSource::InCluster,
        };
        let api = KubernetesApi::connect(&source).await?;
        let (mig, view) = config.mig.repartition.then(MigChannels::new).unzip();
        let lent = watch::Sender::default();
        let readers = |endpoint| DeviceReaders {
            endpoint,
            token_file: config.usage.devices_token_file.clone(),
            clock: Arc::clone(clock),
        };
        let options = ObserverOptions {
            mig: view,
            pending: Some(config.sharing.reclaim_for_pending.clone()),
            readers: config.usage.devices.clone().map(readers),
        };
        let inventory = observe::kubernetes::observe_with(&api, settings, lent.subscribe(), options);
        let donor = NamespaceDelivery::new(api.clone(), Arc::clone(clock), salt.clone())
            .with_guest_labels(config.guest_labels())
            .with_egress(config.sharing.egress.clone())
            .with_unrestricted_agent(kubernetes.unrestricted);
        let origin = Arc::new(OriginSecret::open(api.clone(), state, &config.burst.default_tenant)?);
        let (donor, policies) = (Arc::new(donor), watch::Sender::default());
        Ok(Self { donor, origin, inventory, salt, mig, api: Some(api), lent, policies })
    }

    /// Follows the policies without which nothing is offered.
    pub(super) async fn follow_policies(
        &self,
        config: &Config,
        clock: &Arc<dyn Clock>,
        missing: IntGauge,
        shutdown: &Shutdown,
    ) {
        let Some(api) = &self.api else { return };
        let look = PolicyLook {
            policies: config.guest_policies(api.client(), Arc::clone(clock)),
            labels: config.guest_labels(),
            client: api.client(),
            missing,
            publish: self.policies.clone(),
        };
        lending::follow(look, clock, shutdown).await;
    }

    /// Cleans nodes after leases, where the configuration asks for it.
    pub(super) fn cleaner(&self, config: &Config, clock: &Arc<dyn Clock>) -> Option<NodeCleaner> {
        let api = self.api.as_ref().filter(|_| config.sharing.clean_nodes)?;
        Some(NodeCleaner::new(api.client(), self.salt.clone(), Arc::clone(clock)))
    }

    /// The nodes as they are offered: without `canary` the inventory, with it only proved nodes lend.
    pub(super) fn offered_nodes(&self, config: &Config, parts: &Parts, shutdown: &Shutdown) -> OfferedNodes {
        let unproved = watch::Sender::default();
        let mut offered = OfferedNodes { nodes: self.inventory.nodes(), unproved: unproved.subscribe() };
        let client = self.api.as_ref().map(KubernetesApi::client);
        match (client, config.canary.clone()) {
            (Some(client), Some(settings)) => {
                let gated = watch::Sender::default();
                let nodes = std::mem::replace(&mut offered.nodes, gated.subscribe());
                let (runtime_class, salt) = (config.sharing.runtime_class.clone(), self.salt.clone());
                let clock = Arc::clone(&parts.clock);
                let context = CanaryContext { client, settings, runtime_class, salt, nodes, clock };
                let results = CanaryResults { offered: gated, unproved };
                let canaries = canary::run(context, results, shutdown.token());
                shutdown.spawn(parts.fence.clone().hold(shutdown.token(), canaries));
            }
            (Some(client), None) => {
                let clearing = CANARY_NAMESPACE.clear(client);
                shutdown.spawn(parts.fence.clone().hold(shutdown.token(), clearing));
            }
            (None, _) => {}
        }
        offered
    }

    /// Starts the tasks that keep the cluster as its leases are: drifted pods go, and unused GPUs are held.
    pub(super) fn compare_leases(&self, config: &Config, metrics: &Metrics, parts: &Parts, shutdown: &Shutdown) {
        let Some(client) = self.api.as_ref().map(KubernetesApi::client) else { return };
        let (differences, clock, fence) = (self.inventory.differences(), Arc::clone(&parts.clock), &parts.fence);
        let drift = DriftContext {
            client: client.clone(),
            differences: differences.clone(),
            metrics: metrics.clone(),
            clock: Arc::clone(&clock),
        };
        shutdown.spawn(fence.clone().hold(shutdown.token(), drift::run(drift, shutdown.token())));
        let conflicts =
            ConflictContext { client: client.clone(), devices: self.inventory.devices(), metrics: metrics.clone() };
        shutdown.spawn(device_conflicts::run(conflicts, shutdown.token()));
        if config.sharing.hold {
            let (image, lent) = (config.sharing.placeholder_image.clone(), self.lent.subscribe());
            let context = PlaceholderContext { client, image, lent, differences, clock };
            shutdown.spawn(fence.clone().hold(shutdown.token(), placeholders::run(context, shutdown.token())));
        } else {
            let clearing = PLACEHOLDER_NAMESPACE.clear(client);
            shutdown.spawn(fence.clone().hold(shutdown.token(), clearing));
        }
    }
}
