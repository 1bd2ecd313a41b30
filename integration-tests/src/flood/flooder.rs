//! Mallory, who floods the leader.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::agent_service_client::AgentServiceClient;
use comity_proto::v1::broker_message::Body as Reply;
use comity_proto::v1::offer_service_client::OfferServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use comity_runtime::tls::{ClientStream, dial};
use comity_runtime::{BrokerChannel, BrokerEndpoints, ClientTls, TlsIdentity};
use tokio::io::AsyncReadExt as _;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::busy_cores::lower_priority;
use super::flood_kind::FloodKind;
use super::flood_policy::LOUD;
use super::submitter::{early, spec, tomorrow_ms};
use crate::federation::broker_api::{JoinedCluster, MAX_PAGE_ITEMS, channel};
use crate::growth::inventory;

/// Concurrent calls: as many as a broker lets one caller have.
const FLOOD_CALLS: usize = 64;
/// Connections and watches that each task keeps open.
const HELD_PER_TASK: usize = 64;
/// Watches and quotes of [`FloodKind::WatchesAndQuotes`].
const HELD_WATCHES: usize = 500;
const QUOTES_AT_A_TIME: usize = 200;
/// Nodes of each offer of the flooding agent.
const FLOOD_NODES: usize = 2_000;
/// Reports of the flooding agent that wait for the connection; each has megabytes.
const REPORTS_IN_FLIGHT: usize = 4;
/// Timeout of opening a connection.
const FLOOD_DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a refused connection or stream, so that the flood does not spend its time on refusals alone.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// What the brokers did with a flood.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FloodCounts {
    pub(crate) answered: u64,
    pub(crate) refused: u64,
}

impl FloodCounts {
    pub(crate) fn since(self, before: Self) -> Self {
        Self { answered: self.answered - before.answered, refused: self.refused - before.refused }
    }
}

#[derive(Debug, Default)]
struct Tally {
    answered: AtomicU64,
    refused: AtomicU64,
}

impl Tally {
    fn note<T, E>(&self, outcome: &Result<T, E>) {
        let count = if outcome.is_ok() { &self.answered } else { &self.refused };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// A flood under way; it ends on drop.
pub(super) struct Flooder {
    tally: Arc<Tally>,
    runtime: Option<Runtime>,
}

impl Drop for Flooder {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What every task of a flood has.
#[derive(Clone)]
struct FloodTask {
    tally: Arc<Tally>,
    mallory: BrokerChannel,
    opens_ms: u64,
}

impl Flooder {
    /// Starts a flood on threads of its own.
    ///
    /// # Errors
    /// When a certificate is unusable, or no thread starts.
    pub(super) fn start(
        kind: FloodKind,
        has_idle_baseline: bool,
        mallory: impl FnOnce() -> Result<BrokerChannel>,
        leader: &BrokerEndpoints,
        loud: &JoinedCluster,
    ) -> Result<Self> {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        if !has_idle_baseline {
            threads.on_thread_start(lower_priority);
        }
        let runtime = threads.worker_threads(2).enable_all().build()?;
        let tally = Arc::new(Tally::default());
        // Channels work on the threads where they are made.
        let entered = runtime.enter();
        let mallory = mallory()?;
        let task = FloodTask { tally: Arc::clone(&tally), mallory, opens_ms: tomorrow_ms()? };
        match kind {
            FloodKind::Reports => {
                let agent = channel(leader, &loud.pem)?;
                runtime.spawn(async move { task.report(agent).await });
            }
            FloodKind::Connections => {
                let roots = TlsIdentity::from_pem(&loud.pem)?.roots().clone();
                let (tls, address) = (ClientTls::anonymous(roots), leader.addresses()[0].clone());
                for _ in 0..FLOOD_CALLS {
                    let (task, tls, address) = (task.clone(), tls.clone(), address.clone());
                    runtime.spawn(async move { task.connect(&tls, &address).await });
                }
            }
            FloodKind::WatchesAndQuotes => {
                for _ in 0..HELD_WATCHES {
                    let task = task.clone();
                    runtime.spawn(async move { task.hold_watch().await });
                }
                for number in 0..QUOTES_AT_A_TIME {
                    let task = task.clone();
                    runtime.spawn(async move { task.call(FloodKind::Quotes, number).await });
                }
            }
            FloodKind::Quotes | FloodKind::Submits | FloodKind::Cancels | FloodKind::Watches | FloodKind::Lists => {
                for number in 0..FLOOD_CALLS {
                    let task = task.clone();
                    runtime.spawn(async move { task.call(kind, number).await });
                }
            }
        }
        drop(entered);
        Ok(Self { tally, runtime: Some(runtime) })
    }

    /// Calls, connections and reports so far.
    pub(super) fn counts(&self) -> FloodCounts {
        FloodCounts {
            answered: self.tally.answered.load(Ordering::Relaxed),
            refused: self.tally.refused.load(Ordering::Relaxed),
        }
    }
}

impl FloodTask {
    async fn call(&self, kind: FloodKind, task: usize) {
        let mut watches = Vec::new();
        for number in 0_u64.. {
            let answered = match kind {
                FloodKind::Quotes => self.quote().await,
                FloodKind::Submits => self.submit(&format!("flood-{task}-{number}")).await.map(drop),
                FloodKind::Cancels => self.submit_and_cancel(&format!("flood-{task}-{number}")).await,
                FloodKind::Lists => self.list(number).await,
                FloodKind::Watches | FloodKind::Connections | FloodKind::Reports | FloodKind::WatchesAndQuotes => {
                    let watch = WatchServiceClient::new(self.mallory.clone()).watch(v1::WatchRequest::default()).await;
                    let opened = watch.map(|watch| watches.push(watch));
                    if watches.len() > HELD_PER_TASK / FLOOD_CALLS {
                        watches.clear();
                    }
                    opened
                }
            };
            self.tally.note(&answered);
            if answered.is_err() {
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }

    /// Keeps one watch open, and opens it again when it is refused or ends.
    async fn hold_watch(&self) {
        loop {
            let watch = WatchServiceClient::new(self.mallory.clone()).watch(v1::WatchRequest::default()).await;
            self.tally.note(&watch);
            if let Ok(watch) = watch {
                let mut events = watch.into_inner();
                while let Ok(Some(_)) = events.message().await {}
            }
            tokio::time::sleep(REFUSED_PAUSE).await;
        }
    }

    async fn quote(&self) -> Result<(), tonic::Status> {
        let quote = v1::QuoteRequestRequest { spec: Some(spec(LOUD, 8)), queue_anyway: true };
        RequestServiceClient::new(self.mallory.clone()).quote_request(quote).await.map(drop)
    }

    /// Returns the request's id.
    async fn submit(&self, key: &str) -> Result<String, tonic::Status> {
        let submit = v1::SubmitRequestRequest {
            spec: Some(early(spec(LOUD, 1), self.opens_ms)),
            idempotency_key: key.to_owned(),
            queue_anyway: false,
            dry_run: false,
        };
        let reply = RequestServiceClient::new(self.mallory.clone()).submit_request(submit).await?;
        Ok(reply.into_inner().request.unwrap_or_default().id)
    }

    async fn submit_and_cancel(&self, key: &str) -> Result<(), tonic::Status> {
        let cancel =
            v1::CancelRequestRequest { request: self.submit(key).await?, idempotency_key: format!("cancel-{key}") };
        RequestServiceClient::new(self.mallory.clone()).cancel_request(cancel).await.map(drop)
    }

    async fn list(&self, number: u64) -> Result<(), tonic::Status> {
        let page = Some(v1::PageRequest { size: MAX_PAGE_ITEMS, token: String::new() });
        match number % 3 {
            0 => {
                let list = v1::ListRequestsRequest { page, include_ended: true, ..v1::ListRequestsRequest::default() };
                RequestServiceClient::new(self.mallory.clone()).list_requests(list).await.map(drop)
            }
            1 => {
                let list = v1::ListOffersRequest { page, ..v1::ListOffersRequest::default() };
                OfferServiceClient::new(self.mallory.clone()).list_offers(list).await.map(drop)
            }
            _ => {
                let get = v1::GetPolicyRequest::default();
                PolicyServiceClient::new(self.mallory.clone()).get_policy(get).await.map(drop)
            }
        }
    }

    /// Opens connections, waits for the greeting of each, and keeps them.
    async fn connect(&self, tls: &ClientTls, address: &str) {
        let mut held = Vec::new();
        loop {
            let connected = greeted(address, tls).await.map(|connection| held.push(connection));
            self.tally.note(&connected);
            if connected.is_err() {
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
            if held.len() > HELD_PER_TASK {
                held.clear();
            }
        }
    }

    /// Reports as the flooding cluster's agent, and connects again when its stream ends.
    async fn report(&self, agent: BrokerChannel) {
        let mut generation = 1;
        loop {
            let outcome = self.report_on_stream(agent.clone(), &mut generation).await;
            self.tally.note(&outcome);
            tokio::time::sleep(REFUSED_PAUSE).await;
        }
    }

    async fn report_on_stream(&self, agent: BrokerChannel, generation: &mut u64) -> Result<()> {
        let (reports, receiver) = mpsc::channel(REPORTS_IN_FLIGHT);
        let message = |message_id, body| v1::AgentMessage { message_id, body: Some(body), traceparent: String::new() };
        reports.send(message(0, Body::Hello(v1::Hello::default()))).await?;
        let mut client = AgentServiceClient::new(agent).max_decoding_message_size(64 << 20);
        let mut replies = client.connect(ReceiverStream::new(receiver)).await?.into_inner();
        let welcome = replies.message().await?.and_then(|reply| reply.body);
        let Some(Reply::Welcome(welcome)) = welcome else { anyhow::bail!("no welcome: {welcome:?}") };
        *generation = (*generation).max(welcome.offer_generation + 1);
        let send = async {
            for id in 1.. {
                let offer = inventory::offer(0, LOUD, FLOOD_NODES, *generation);
                *generation += 1;
                reports.send(message(id, Body::Offer(offer))).await?;
            }
            anyhow::Ok(())
        };
        let hear = async {
            loop {
                let reply = replies.message().await?.and_then(|reply| reply.body).context("the stream ended")?;
                if let Reply::Ack(ack) = reply {
                    self.tally.note(&ack.error.map_or(Ok(()), Err));
                }
            }
        };
        tokio::select! {
            sent = send => sent,
            heard = hear => heard,
        }
    }
}

/// A connection that the broker greets rather than closes.
async fn greeted(address: &str, tls: &ClientTls) -> Result<ClientStream> {
    let mut connection = dial(address, tls, FLOOD_DIAL_TIMEOUT).await?;
    connection.read_exact(&mut [0; 1]).await?;
    Ok(connection)
}
