//! Alice, who submits one request after another and cancels each, so that her queue stays short.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use comity_proto::v1;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::v1::share::{Kind, Whole};
use comity_runtime::BrokerChannel;
use tonic::Status;

use super::flood_policy::QUIET;
use crate::federation::policy_documents::CLASS;
use crate::statistics::percentile;

/// Timeout of one call of alice.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(20);
/// Start window of requests: none is placed during the measurement.
const OPENS_AFTER: Duration = Duration::from_secs(24 * 3_600);

/// The times of alice's submissions in one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Submitted {
    pub(crate) count: usize,
    pub(crate) failed: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// Submits as alice.
pub(super) struct SteadySubmitter {
    client: RequestServiceClient<BrokerChannel>,
    opens_ms: u64,
    next: u64,
}

impl SteadySubmitter {
    pub(super) fn new(channel: BrokerChannel) -> Result<Self> {
        Ok(Self { client: RequestServiceClient::new(channel), opens_ms: tomorrow_ms()?, next: 0 })
    }

    /// Submits until `length` has passed. A failed submission counts with the time that it took.
    ///
    /// # Errors
    /// When none succeeds.
    pub(super) async fn submit_for(&mut self, length: Duration) -> Result<Submitted> {
        let (until, mut took, mut failed) = (Instant::now() + length, Vec::new(), 0);
        let mut last = String::new();
        while Instant::now() < until {
            let began = Instant::now();
            let submitted = self.submit().await;
            took.push(began.elapsed());
            match submitted {
                Ok(id) => self.cancel(id).await,
                Err(status) => {
                    failed += 1;
                    last = status.message().to_owned();
                }
            }
        }
        ensure!(failed < took.len(), "no submission succeeded: {last}");
        took.sort_unstable();
        Ok(Submitted { count: took.len(), failed, p50_ms: percentile(&took, 50), p99_ms: percentile(&took, 99) })
    }

    async fn submit(&mut self) -> Result<String, Status> {
        self.next += 1;
        let request = v1::SubmitRequestRequest {
            spec: Some(early(spec(QUIET, 1), self.opens_ms)),
            idempotency_key: format!("alice-{}", self.next),
            queue_anyway: false,
            dry_run: false,
        };
        let reply = tokio::time::timeout(SUBMIT_TIMEOUT, self.client.submit_request(request)).await;
        let reply = reply.map_err(|_| Status::deadline_exceeded("no answer"))??;
        Ok(reply.into_inner().request.unwrap_or_default().id)
    }

    async fn cancel(&mut self, request: String) {
        let idempotency_key = format!("cancel-{}", self.next);
        let cancel = self.client.cancel_request(v1::CancelRequestRequest { request, idempotency_key });
        // What is not cancelled waits in the queue, which has room.
        let _ = tokio::time::timeout(SUBMIT_TIMEOUT, cancel).await;
    }
}

/// A request of the cluster's tenant of the same name.
pub(super) fn spec(cluster: &str, gpus: u32) -> v1::RequestSpec {
    v1::RequestSpec {
        tenant: cluster.to_owned(),
        origin: cluster.to_owned(),
        gpus: Some(v1::GpuDemand {
            class: CLASS.to_owned(),
            share: Some(v1::Share { kind: Some(Kind::Whole(Whole {})) }),
            count: gpus,
            cpu_milli_per_gpu: 8_000,
            memory_mib_per_gpu: 65_536,
            ..v1::GpuDemand::default()
        }),
        topology: Some(v1::Topology { same_node: gpus <= 8, ..v1::Topology::default() }),
        duration_ms: 3_600_000,
        delivery: v1::Delivery::Namespace.into(),
        note: "flood".to_owned(),
        ..v1::RequestSpec::default()
    }
}

/// The same request, which waits for its start window.
pub(super) fn early(spec: v1::RequestSpec, not_before_ms: u64) -> v1::RequestSpec {
    v1::RequestSpec { not_before_ms, ..spec }
}

/// A day from now, in milliseconds since 1970.
///
/// # Errors
/// When this machine's clock is before 1970.
pub(super) fn tomorrow_ms() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(u64::try_from((now + OPENS_AFTER).as_millis())?)
}
