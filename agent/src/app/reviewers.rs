//! The admission webhooks of an agent.

use std::sync::Arc;

use comity_agent_workload::burst::{GATE_WEBHOOK, GateReview};
use comity_agent_workload::lease_pods::{LEASE_PODS_WEBHOOK, LeasePodsReview};
use comity_agent_workload::webhook::{self, Review, WebhookSettings};
use comity_runtime::Clock;
use tokio_util::sync::CancellationToken;

use crate::services::remapped_addresses::{REMAPPED_ADDRESSES_WEBHOOK, RemappedAddressesReview};

/// Answers to the API server's reviews.
pub(super) struct Reviewers {
    pub(super) lease_pods: LeasePodsReview,
    /// Absent: bursting is off.
    pub(super) gate: Option<GateReview>,
    /// Absent: no pod networks are remapped.
    pub(super) addresses: Option<RemappedAddressesReview>,
}

impl Reviewers {
    /// Answers the API server until stopped. Registrations of webhooks that are off are removed.
    pub(super) async fn run(
        self,
        client: kube::Client,
        settings: Option<WebhookSettings>,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) {
        let Self { lease_pods, gate, addresses } = self;
        if settings.is_none() || gate.is_none() {
            webhook::remove(&client, GATE_WEBHOOK).await;
        }
        if settings.is_none() || addresses.is_none() {
            webhook::remove(&client, REMAPPED_ADDRESSES_WEBHOOK).await;
        }
        let Some(settings) = settings else { return webhook::remove(&client, LEASE_PODS_WEBHOOK).await };
        let mut reviews: Vec<Box<dyn Review>> = vec![Box::new(lease_pods)];
        reviews.extend(gate.map(|gate| Box::new(gate) as Box<dyn Review>));
        reviews.extend(addresses.map(|review| Box::new(review) as Box<dyn Review>));
        webhook::run(client, settings, reviews.into(), clock, stop).await;
    }
}
