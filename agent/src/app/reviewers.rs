//! The admission webhooks of an agent.

use std::sync::Arc;

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
        WebhookServer { client, settings, reviews: reviews.into(), clock, certificate_end }.run(stop).await;
    }
}
