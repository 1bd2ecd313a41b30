//! The donor's side: checks its Liqo, and starts the class controller and the admission policies.
//!
//! They start before any lease is known, and with all of them: grants follow from the records.

use std::sync::Arc;

use comity_agent_delivery::{NodeLender, VirtualNodeDonor};
use comity_agent_kubernetes::api::KubernetesApi;
use comity_agent_liqo::donor::Grants;
use comity_agent_liqo::donor::{
    ClassController, DonorSettings, GuestNamespaces, Installation, LiqoDonor, NamespaceKeeper, PeerNetworks,
    PolicyKeeper, pod_metrics,
};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::node_id::NodeSalt;
use comity_proto::v1;
use comity_runtime::{Clock, Shutdown};
use tokio::sync::watch;

use super::DonorSide;
use crate::config::Config;

/// The observed state of this cluster.
pub(super) struct OwnCluster<'a> {
    pub(super) network: &'a v1::ClusterNetwork,
    pub(super) installation: &'a Result<Installation, String>,
    pub(super) salt: &'a NodeSalt,
    pub(super) clock: &'a Arc<dyn Clock>,
    pub(super) peer_networks: watch::Receiver<Option<Arc<PeerNetworks>>>,
}

/// Starts the donor's side. An invalid installation prevents lending, but not the removal of earlier leases.
pub(super) async fn start(
    config: &Config,
    api: &KubernetesApi,
    own: OwnCluster<'_>,
    grants: watch::Receiver<Arc<Grants>>,
    shutdown: &Shutdown,
) -> Result<DonorSide, DeliveryError> {
    let client = api.client();
    let liqo_id = own.network.liqo_cluster_id.as_str();
    let keeper = PolicyKeeper::start(client.clone(), config.liqo.policies(), liqo_id, grants.clone());
    let settings = DonorSettings::new(liqo_id, api.target(), &own.network.api_server, api.ca_pem());
    let liqo = LiqoDonor::new(client.clone(), settings);
    let guests = config.guest_policies(client.clone(), Arc::clone(own.clock));
    let lender = NodeLender::new(client.clone(), liqo, own.salt.clone(), keeper.in_force())
        .with_guest_labels(config.guest_labels(), guests);
    let lender = if config.webhook.is_some() { lender.with_webhook() } else { lender };
    let health = match own.installation {
        Ok(_) => keeper.health(),
        Err(reason) => watch::channel(Err(reason.clone())).1,
    };
    match &config.liqo.pod_metrics {
        Some(settings) => {
            let clock = Arc::clone(own.clock);
            let serving = pod_metrics::run(client.clone(), settings.clone(), grants.clone(), clock, shutdown.token());
            shutdown.spawn(serving);
        }
        None => pod_metrics::remove_registration(&client).await,
    }
    let guests = GuestNamespaces {
        labels: config.guest_labels(),
        egress: config.sharing.egress.clone(),
        networks: own.peer_networks,
        has_liqo_network: own.network.liqo_network,
    };
    let stop = shutdown.token();
    shutdown.spawn(async move {
        // The policies stay in the cluster when this task ends: existing grants remain under them.
        let _keeper = keeper;
        tokio::select! {
            () = stop.cancelled() => {}
            () = ClassController::run(client.clone(), grants) => tracing::warn!("the class controller ended"),
            () = NamespaceKeeper::run(client, guests) => tracing::warn!("the keeper of namespaces ended"),
        }
    });
    let side: Arc<dyn VirtualNodeDonor> = Arc::new(lender);
    Ok(DonorSide { side, health })
}
