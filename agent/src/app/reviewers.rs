//! The admission webhooks of an agent.

use std::sync::Arc;

use comity_agent_fabric::Fence;
use comity_agent_workload::burst::GateReview;
use comity_agent_workload::lease_pods::LeasePodsReview;
use comity_agent_workload::webhook::{Registration, Review, WebhookServer, WebhookSettings};
use comity_runtime::Clock;
use prometheus::IntGauge;
use tokio_util::sync::CancellationToken;

use crate::services::remapped_addresses::RemappedAddressesReview;

/// Answers to the API server's reviews.
pub(super) struct Reviewers {
    pub(super) lease_pods: LeasePodsReview,
    pub(super) gate: GateReview,
    pub(super) addresses: RemappedAddressesReview,
    /// Shows when the certificate ends.
    pub(super) certificate_end: IntGauge,
    /// Of several replicas only the active one answers.
    pub(super) fence: Fence,
}

impl Reviewers {
    /// Answers the reviews of these registrations until stopped.
    pub(super) async fn run(
        self,
        client: kube::Client,
        settings: WebhookSettings,
        registrations: Vec<Registration>,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) {
        let mut reviews: Vec<Box<dyn Review>> =
            vec![Box::new(self.lease_pods), Box::new(self.gate), Box::new(self.addresses)];
        reviews.retain(|review| registrations.contains(&review.registration()));
        let certificate_end = self.certificate_end;
        let server = WebhookServer { client, settings, reviews: reviews.into(), clock, certificate_end };
        self.fence.hold(stop.clone(), server.run(stop)).await;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use comity_agent_model::boot_time::BootTime;
    use comity_agent_model::node_service::NodeService;
    use comity_agent_state::store::Store;
    use comity_agent_workload::burst::RequestedStores;
    use comity_agent_workload::lease_pods::lease_pods_registration;
    use comity_runtime::SystemClock;
    use http::{Request, Response};
    use kube::client::Body;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;

    use super::*;
    use crate::reconcile::parts::RemapBook;

    /// Two replicas would answer from two copies of the state, and the one that was replaced from an old one.
    #[tokio::test]
    async fn a_replica_that_was_replaced_reviews_nothing() {
        let (home, calls) = (tempfile::tempdir().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        let client = kube::Client::new(
            tower::service_fn(move |_: Request<Body>| {
                counted.fetch_add(1, Ordering::SeqCst);
                std::future::pending::<Result<Response<Body>, std::io::Error>>()
            }),
            "default",
        );
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let service = watch::channel(NodeService::none("a test")).1;
        let book = RemapBook::open(Store::open(home.path()).unwrap()).unwrap();
        let (fence, stop) = (Fence::closed(), CancellationToken::new());
        let reviewers = Reviewers {
            lease_pods: LeasePodsReview::new(client.clone(), Arc::clone(&clock)),
            gate: GateReview::new(service, watch::channel(RequestedStores::default()).1),
            addresses: RemappedAddressesReview::new(Arc::new(book)),
            certificate_end: IntGauge::new("end", "When it ends.").unwrap(),
            fence: fence.clone(),
        };
        let listen = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let settings = WebhookSettings { listen, ..WebhookSettings::default() };
        let registrations = vec![lease_pods_registration()];
        let running = tokio::spawn(reviewers.run(client, settings, registrations, clock, stop.clone()));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(calls.load(Ordering::SeqCst), 0, "it reads its certificate behind a closed fence");
        assert!(TcpStream::connect(listen).await.is_err(), "it listens behind a closed fence");
        fence.extend_until(BootTime::now() + Duration::from_secs(600));
        let begin = async {
            while TcpStream::connect(listen).await.is_err() || calls.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), begin).await.unwrap();
        stop.cancel();
        running.await.unwrap();
    }
}
