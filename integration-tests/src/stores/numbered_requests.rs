//! Requests that carry their numbers. They stay queued, because no donor joins.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, anyhow, ensure};
use comity_proto::v1;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::v1::share::{Kind, Whole};
use comity_runtime::BrokerChannel;

use crate::federation::broker_api::{MAX_PAGE_ITEMS, invite, join};
use crate::federation::policy_documents::CLASS;

/// Number of tenants, which take turns because each one's queue is bounded.
pub(super) const TENANTS: u64 = 8;
/// The origin of the requests. It joins and then stays silent, which is enough for queued requests.
pub(crate) const SILENT_ORIGIN: &str = "campus";

/// Invites the origin as admin, and joins as the origin.
///
/// # Errors
/// When the brokers refuse either.
pub(crate) async fn join_origin(admin: BrokerChannel) -> Result<()> {
    let token = invite(admin, SILENT_ORIGIN).await?;
    join(SILENT_ORIGIN, &token).await.map(drop)
}

/// Request number `number`.
pub(crate) fn request(number: u64) -> v1::SubmitRequestRequest {
    request_of(&tenant(number % TENANTS), number, 0)
}

/// The id of a tenant.
pub(crate) fn tenant(number: u64) -> String {
    format!("tenant-{number}")
}

/// Request number `number` for a tenant; its note is its number.
pub(crate) fn request_of(tenant: &str, number: u64, start_by_ms: u64) -> v1::SubmitRequestRequest {
    let spec = v1::RequestSpec {
        tenant: tenant.to_owned(),
        origin: SILENT_ORIGIN.to_owned(),
        gpus: Some(v1::GpuDemand {
            class: CLASS.to_owned(),
            share: Some(v1::Share { kind: Some(Kind::Whole(Whole {})) }),
            count: 1,
            cpu_milli_per_gpu: 8_000,
            memory_mib_per_gpu: 65_536,
            ..v1::GpuDemand::default()
        }),
        topology: Some(v1::Topology { same_node: true, ..v1::Topology::default() }),
        duration_ms: 3_600_000,
        delivery: v1::Delivery::Namespace.into(),
        note: number.to_string(),
        start_by_ms,
        ..v1::RequestSpec::default()
    };
    v1::SubmitRequestRequest {
        spec: Some(spec),
        idempotency_key: format!("write-{number}"),
        queue_anyway: true,
        dry_run: false,
    }
}

/// The number that a client gave a request.
///
/// # Errors
/// When its note is no number.
pub(crate) fn number_of(request: &v1::Request) -> Result<u64> {
    let note = &request.spec.as_ref().context("a request has a spec")?.note;
    note.parse().with_context(|| format!("request with the note {note:?}"))
}

/// The numbers of all requests that `filter` selects, read linearizably, page by page.
///
/// # Errors
/// When a call fails, or a number is there twice.
pub(crate) async fn list_numbers(channel: BrokerChannel, filter: &v1::ListRequestsRequest) -> Result<BTreeSet<u64>> {
    let mut client = RequestServiceClient::new(channel);
    let (mut numbers, mut token) = (BTreeSet::new(), String::new());
    loop {
        let request = v1::ListRequestsRequest {
            page: Some(v1::PageRequest { size: MAX_PAGE_ITEMS, token }),
            consistency: v1::Consistency::Linearizable.into(),
            ..filter.clone()
        };
        let reply = client.list_requests(request).await.map_err(|status| anyhow!("{}", status.message()))?;
        let reply = reply.into_inner();
        for request in &reply.requests {
            let number = number_of(request)?;
            ensure!(numbers.insert(number), "request {number} is there twice");
        }
        token = reply.page.context("a reply has a page")?.next_token;
        if token.is_empty() {
            return Ok(numbers);
        }
    }
}
