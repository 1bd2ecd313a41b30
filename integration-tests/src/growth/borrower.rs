//! Calls of the user alice, who borrows for every tenant, and of the admin.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use comity_proto::v1;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::offer_service_client::OfferServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::BrokerChannel;
use futures::{StreamExt as _, TryStreamExt as _};
use tonic::{Code, Status};

use super::demand;
use crate::federation::broker_api::{MAX_PAGE_ITEMS, invite};
use crate::statistics::percentile;

/// Concurrent calls; a broker accepts 64 of one user.
pub(super) const CONCURRENT_CALLS: usize = 48;
/// Maximum tries of a call, and the interval between them.
const TRIES: u32 = 20;
const UNAVAILABLE_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Borrower {
    alice: BrokerChannel,
    admin: BrokerChannel,
    origins: usize,
}

impl Borrower {
    pub(super) const fn new(alice: BrokerChannel, admin: BrokerChannel, origins: usize) -> Self {
        Self { alice, admin, origins }
    }

    /// A join token.
    pub(super) async fn invite(&self, cluster: &str) -> Result<String> {
        invite(self.admin.clone(), cluster).await
    }

    /// Submits the request of this number.
    pub(super) async fn submit(&self, number: u64) -> Result<()> {
        let request = v1::SubmitRequestRequest {
            spec: Some(demand::spec(usize::try_from(number)?, self.origins)),
            idempotency_key: format!("submit-{number}"),
            dry_run: false,
            queue_anyway: true,
        };
        let reply =
            repeated(async || RequestServiceClient::new(self.alice.clone()).submit_request(request.clone()).await)
                .await;
        reply.map(drop).with_context(|| format!("submit request {number}"))
    }

    /// Reads a lease linearizably.
    pub(super) async fn show(&self, lease: &str) -> Result<v1::Lease> {
        let request =
            v1::GetLeaseRequest { lease: lease.to_owned(), consistency: v1::Consistency::Linearizable.into() };
        let reply = LeaseServiceClient::new(self.alice.clone()).get_lease(request).await?;
        reply.into_inner().lease.context("a lease")
    }

    /// Ids of all leases that have not ended, page by page.
    pub(super) async fn list_leases(&self) -> Result<Vec<String>> {
        let mut client = LeaseServiceClient::new(self.alice.clone());
        let (mut ids, mut token) = (Vec::new(), String::new());
        loop {
            let page = Some(v1::PageRequest { size: MAX_PAGE_ITEMS, token });
            let request = v1::ListLeasesRequest { page, ..v1::ListLeasesRequest::default() };
            let reply = client.list_leases(request).await.context("list leases")?.into_inner();
            ids.extend(reply.leases.into_iter().map(|lease| lease.id));
            token = reply.page.context("an answer without a page")?.next_token;
            if token.is_empty() {
                return Ok(ids);
            }
        }
    }

    /// Lists the summaries of all offers, including the empty ones of origins.
    pub(super) async fn list_offers(&self, at_least: usize) -> Result<()> {
        let page = Some(v1::PageRequest { size: MAX_PAGE_ITEMS, token: String::new() });
        let request = v1::ListOffersRequest { page, ..v1::ListOffersRequest::default() };
        let reply = OfferServiceClient::new(self.admin.clone()).list_offers(request).await.context("list offers")?;
        let listed = reply.into_inner().offers.len();
        ensure!(
            listed >= at_least.min(MAX_PAGE_ITEMS as usize),
            "{listed} offers are listed, and there are {at_least} donors"
        );
        Ok(())
    }

    /// Renews `count` leases one after another; returns median and 99th percentile in milliseconds.
    pub(super) async fn renew_one_by_one(&self, leases: &[String], count: usize) -> Result<(f64, f64)> {
        let mut took = Vec::new();
        for (number, lease) in leases.iter().cycle().take(count).enumerate() {
            let began = Instant::now();
            self.renew_one(lease, &format!("one-by-one-{number}")).await?;
            took.push(began.elapsed());
        }
        took.sort_unstable();
        Ok((percentile(&took, 50), percentile(&took, 99)))
    }

    /// Renews `count` leases cyclically, starting with index `from`.
    pub(super) async fn renew(&self, leases: &[String], from: u64, count: u64) -> Result<()> {
        let renewals = futures::stream::iter(from..from + count).map(|number| async move {
            let index = usize::try_from(number)? % leases.len();
            self.renew_one(&leases[index], &format!("renewal-{number}")).await
        });
        renewals.buffer_unordered(CONCURRENT_CALLS).try_collect().await
    }

    async fn renew_one(&self, lease: &str, key: &str) -> Result<()> {
        let request = v1::RenewLeaseRequest {
            lease: lease.to_owned(),
            duration_ms: 0,
            idempotency_key: key.to_owned(),
            may_shorten: false,
        };
        let call = async || LeaseServiceClient::new(self.alice.clone()).renew_lease(request.clone()).await;
        let reply = repeated(call).await;
        reply.map(drop).with_context(|| format!("renew {lease}"))
    }

    /// Releases a lease.
    pub(super) async fn release(&self, lease: &str) -> Result<()> {
        let request = v1::ReleaseLeaseRequest { lease: lease.to_owned(), idempotency_key: format!("release-{lease}") };
        let call = async || LeaseServiceClient::new(self.alice.clone()).release_lease(request.clone()).await;
        let reply = repeated(call).await;
        reply.map(drop).with_context(|| format!("release {lease}"))
    }
}

/// Retries a call while the group is unavailable: a disk may take seconds for one fsync. The call's idempotency key
/// makes retries safe.
async fn repeated<T>(call: impl AsyncFn() -> Result<T, Status>) -> Result<T, Status> {
    let mut tried = 1;
    loop {
        match call().await {
            Err(status) if status.code() == Code::Unavailable && tried < TRIES => tried += 1,
            answer => return answer,
        }
        tokio::time::sleep(UNAVAILABLE_RETRY_INTERVAL).await;
    }
}
