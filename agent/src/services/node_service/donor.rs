//! The donor's side: checks its Liqo, and starts the class controller and the admission policies.
//!
//! They start before any lease is known, and with all of them: grants follow from the records.

use std::sync::Arc;

use comity_agent_delivery::{NodeLender, VirtualNodeDonor};
use comity_agent_fabric::Fence;
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
use kube::Client;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

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

/// Writes what slices and namespaces of guests are granted, until stopped. Of several replicas only the active one
/// does.
async fn keep_guests(
    fence: Fence,
    stop: CancellationToken,
    client: Client,
    grants: watch::Receiver<Arc<Grants>>,
    guests: GuestNamespaces,
) {
    let ends = stop.clone();
    let keepers = async move {
        tokio::select! {
            () = ends.cancelled() => {}
            () = ClassController::run(client.clone(), grants) => tracing::warn!("the class controller ended"),
            () = NamespaceKeeper::run(client, guests) => tracing::warn!("the keeper of namespaces ended"),
        }
    };
    fence.hold(stop, keepers).await;
}

/// Starts the donor's side. An invalid installation prevents lending, but not the removal of earlier leases.
pub(super) async fn start(
    config: &Config,
    api: &KubernetesApi,
    own: OwnCluster<'_>,
    grants: watch::Receiver<Arc<Grants>>,
    fence: &Fence,
    shutdown: &Shutdown,
) -> Result<DonorSide, DeliveryError> {
    let (client, stop) = (api.client(), shutdown.token());
    let liqo_id = own.network.liqo_cluster_id.as_str();
    let policies = config.liqo.policies();
    let held = |keeping| tokio::spawn(fence.clone().hold(stop.clone(), keeping));
    let keeper = PolicyKeeper::start(client.clone(), policies, liqo_id, grants.clone(), held);
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
    let keeping = keep_guests(fence.clone(), stop, client, grants, guests);
    shutdown.spawn(async move {
        // The policies stay in the cluster when this task ends: existing grants remain under them.
        let _keeper = keeper;
        keeping.await;
    });
    let side: Arc<dyn VirtualNodeDonor> = Arc::new(lender);
    Ok(DonorSide { side, health })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use comity_agent_liqo::donor::PolicySettings;
    use comity_agent_model::boot_time::BootTime;
    use http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// An API server that counts calls and answers none.
    fn counting(calls: &Arc<AtomicUsize>) -> Client {
        let calls = Arc::clone(calls);
        let service = tower::service_fn(move |_: Request<Body>| {
            calls.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<Response<Body>, std::io::Error>>()
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn keepers_of_a_replica_that_was_replaced_write_nothing() {
        let (calls, fence, stop) = (Arc::new(AtomicUsize::new(0)), Fence::closed(), CancellationToken::new());
        let (_grants, granted) = watch::channel(Arc::default());
        let (_networks, networks) = watch::channel(Some(Arc::default()));
        let guests = GuestNamespaces {
            labels: Config::default().guest_labels(),
            egress: Config::default().sharing.egress,
            networks,
            has_liqo_network: false,
        };
        let keepers = tokio::spawn(keep_guests(fence.clone(), stop.clone(), counting(&calls), granted.clone(), guests));
        let held = |keeping| tokio::spawn(fence.clone().hold(stop.clone(), keeping));
        let policies = PolicyKeeper::start(counting(&calls), PolicySettings::default(), "donor", granted, held);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(calls.load(Ordering::SeqCst), 0, "they read and write behind a closed fence");
        fence.extend_until(BootTime::now() + Duration::from_secs(600));
        // Slices, namespaces, and three kinds of the policies.
        let begin = async {
            while calls.load(Ordering::SeqCst) < 5 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), begin).await.unwrap();
        drop(policies);
        stop.cancel();
        keepers.await.unwrap();
    }
}
