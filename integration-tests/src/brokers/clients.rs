//! Clients that write, read and record a history during faults.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use comity_proto::v1;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::BrokerChannel;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::group::{Group, permanent_tenant, temporary_tenant};
use crate::chaos::dice::Dice;
use crate::federation::broker_api::MAX_PAGE_ITEMS;
use crate::history::{Call, History, LISTED_BELOW, MAX_VIOLATIONS, Observation, Operation};
use crate::stores::numbered_requests::{number_of, request_of};
use crate::watch::now_ms;

/// Clients that submit, cancel and read, and those that list.
const HISTORY_WRITERS: usize = 6;
const LISTERS: usize = 2;
/// Interval between two operations of a client.
const WRITER_INTERVAL: Duration = Duration::from_millis(60);
const LISTER_INTERVAL: Duration = Duration::from_millis(400);
/// Timeout of a try, and interval before the next.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
const CALL_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// After this time the outcome of an operation counts as unknown.
const CALL_DEADLINE: Duration = Duration::from_secs(12);
/// Maximum temporary requests that one writer keeps queued, so that all fit into one page.
const MAX_MOVING: usize = 24;
/// Requests that a writer reads again.
const RECENT: usize = 48;
/// Requests must be placed by then. None is; no clock that jumps may end one.
const START_WITHIN_MS: u64 = 3_600_000;
/// Maximum error of log time when a request is accepted, beyond the duration of its call.
const LOG_TIME_OFF_MS: u64 = 5_000;

/// The running clients.
pub(super) struct Clients {
    shared: Arc<ClientState>,
    tasks: JoinSet<Result<()>>,
}

#[derive(Default)]
struct ClientState {
    history: History,
    stopped: AtomicBool,
    next: AtomicU64,
    /// Requests with an unknown outcome of their submission that were not cancelled yet.
    unknown: Mutex<BTreeSet<u64>>,
    violations: Mutex<Vec<String>>,
}

impl Clients {
    pub(super) fn start(group: &Group, seed: u64) -> Result<Self> {
        let (shared, mut tasks, mut dice) = (Arc::new(ClientState::default()), JoinSet::new(), Dice::new(!seed));
        for number in 0..HISTORY_WRITERS + LISTERS {
            let client = HistoryClient { channel: group.channel_from("alice", number)?, shared: Arc::clone(&shared) };
            if number < HISTORY_WRITERS {
                tasks.spawn(client.write(dice.split()));
            } else {
                tasks.spawn(client.list());
            }
        }
        Ok(Self { shared, tasks })
    }

    /// Waits until all clients have finished; returns their operations and violations.
    pub(super) async fn stop(mut self) -> Result<(Vec<Operation>, Vec<String>)> {
        self.shared.stopped.store(true, Ordering::Relaxed);
        while let Some(task) = self.tasks.join_next().await {
            task??;
        }
        let violations = std::mem::take(&mut *lock(&self.shared.violations));
        Ok((self.shared.history.operations(), violations))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct HistoryClient {
    channel: BrokerChannel,
    shared: Arc<ClientState>,
}

/// A request that was accepted.
#[derive(Clone)]
struct Known {
    number: u64,
    id: String,
}

impl HistoryClient {
    async fn write(self, mut dice: Dice) -> Result<()> {
        let (mut mine, mut recent) = (VecDeque::new(), VecDeque::new());
        while !self.shared.stopped.load(Ordering::Relaxed) {
            match dice.within(0..=9) {
                0..=3 if mine.len() < MAX_MOVING => {
                    let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
                    mine.extend(self.submit(&temporary_tenant(), number, &mut recent).await?);
                }
                4 => {
                    let number = LISTED_BELOW + self.shared.next.fetch_add(1, Ordering::Relaxed);
                    self.submit(&permanent_tenant(), number, &mut recent).await?;
                }
                5..=7 => {
                    if let Some(known) = mine.pop_front() {
                        self.cancel(&known).await?;
                    }
                }
                _ => {
                    if let Some(known) = recent.get(dice.index(recent.len())) {
                        self.read(known).await?;
                    }
                }
            }
            tokio::time::sleep(WRITER_INTERVAL).await;
        }
        Ok(())
    }

    async fn submit(&self, tenant: &str, number: u64, recent: &mut VecDeque<Known>) -> Result<Option<Known>> {
        let (call, called_ms) = (self.shared.history.now(), now_ms());
        let message = request_of(tenant, number, called_ms + START_WITHIN_MS);
        let reply = self
            .repeated(&[], |mut client| {
                let message = message.clone();
                async move { client.submit_request(message).await }
            })
            .await;
        let Some(Ok(reply)) = reply else {
            self.shared.history.unanswered(call, Call::Submit(number));
            if number < LISTED_BELOW {
                lock(&self.shared.unknown).insert(number);
            }
            return Ok(None);
        };
        let request = reply.request.context("a request")?;
        self.shared.history.answered(call, Call::Submit(number), Some(request.revision));
        let (from, to) = (called_ms.saturating_sub(LOG_TIME_OFF_MS), now_ms() + LOG_TIME_OFF_MS);
        if !(from..=to).contains(&request.submitted_at_ms) {
            let off = i128::from(request.submitted_at_ms) - i128::from(called_ms);
            self.violated(format!("log time was {off} ms off when request {number} was accepted"));
        }
        let known = Known { number, id: request.id };
        recent.push_back(known.clone());
        recent.drain(..recent.len().saturating_sub(RECENT));
        Ok(Some(known))
    }

    async fn cancel(&self, known: &Known) -> Result<()> {
        let call = self.shared.history.now();
        let message =
            v1::CancelRequestRequest { request: known.id.clone(), idempotency_key: format!("cancel-{}", known.number) };
        let call_it = |mut client: RequestServiceClient<BrokerChannel>| {
            let message = message.clone();
            async move { client.cancel_request(message).await }
        };
        let history = &self.shared.history;
        match self.repeated(&[Code::NotFound], call_it).await {
            Some(Ok(reply)) => {
                let revision = reply.request.context("a request")?.revision;
                history.answered(call, Call::Cancel(known.number), Some(revision));
            }
            // It was accepted, and nobody else cancels it.
            Some(Err(_)) => history.answered(call, Call::Read(known.number, Observation::Nothing), None),
            None => history.unanswered(call, Call::Cancel(known.number)),
        }
        Ok(())
    }

    async fn read(&self, known: &Known) -> Result<()> {
        let call = self.shared.history.now();
        let consistency = v1::Consistency::Linearizable.into();
        let message = v1::GetRequestRequest { request: known.id.clone(), consistency };
        let call_it = |mut client: RequestServiceClient<BrokerChannel>| {
            let message = message.clone();
            async move { client.get_request(message).await }
        };
        let saw = match self.repeated(&[Code::NotFound], call_it).await {
            Some(Ok(reply)) => {
                let request = reply.request.context("a request")?;
                if number_of(&request)? != known.number {
                    // The id is in use again, so the request that had it is gone.
                    Observation::Nothing
                } else {
                    match request.state() {
                        v1::RequestState::Queued => Observation::Waiting,
                        v1::RequestState::Cancelled => Observation::Cancelled,
                        _ => Observation::EndedByItself,
                    }
                }
            }
            Some(Err(_)) => Observation::Nothing,
            None => return Ok(()),
        };
        self.shared.history.answered(call, Call::Read(known.number, saw), None);
        Ok(())
    }

    async fn list(self) -> Result<()> {
        while !self.shared.stopped.load(Ordering::Relaxed) {
            let call = self.shared.history.now();
            let message = v1::ListRequestsRequest {
                page: Some(v1::PageRequest { size: MAX_PAGE_ITEMS, token: String::new() }),
                consistency: v1::Consistency::Linearizable.into(),
                tenant: temporary_tenant(),
                include_ended: false,
            };
            let reply = self
                .repeated(&[], |mut client| {
                    let message = message.clone();
                    async move { client.list_requests(message).await }
                })
                .await;
            if let Some(Ok(reply)) = reply {
                let page = reply.page.context("a page")?;
                let waiting = reply.requests.iter().map(number_of).collect::<Result<BTreeSet<u64>>>()?;
                if page.next_token.is_empty() {
                    self.shared.history.answered(call, Call::List(waiting), Some(page.revision));
                } else {
                    self.violated(format!(
                        "more than {MAX_PAGE_ITEMS} requests wait that come and go: a list is no single read"
                    ));
                }
                self.tidy(&reply.requests).await?;
            }
            tokio::time::sleep(LISTER_INTERVAL).await;
        }
        Ok(())
    }

    /// Cancels requests that were accepted without an answer, so that they do not pile up.
    async fn tidy(&self, listed: &[v1::Request]) -> Result<()> {
        for request in listed {
            let number = number_of(request)?;
            let was_unknown = lock(&self.shared.unknown).remove(&number);
            if was_unknown {
                self.cancel(&Known { number, id: request.id.clone() }).await?;
            }
        }
        Ok(())
    }

    /// Repeats a call until it is answered, or refused permanently with one of `codes`; `None` if the outcome stays
    /// unknown. Its idempotency key makes repetitions safe.
    async fn repeated<T, F>(
        &self,
        codes: &[Code],
        call: impl Fn(RequestServiceClient<BrokerChannel>) -> F,
    ) -> Option<Result<T, Status>>
    where
        F: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let began = Instant::now();
        while began.elapsed() < CALL_DEADLINE {
            let answer =
                tokio::time::timeout(CALL_TIMEOUT, call(RequestServiceClient::new(self.channel.clone()))).await;
            match answer {
                Ok(Ok(reply)) => return Some(Ok(reply.into_inner())),
                Ok(Err(status)) if codes.contains(&status.code()) => return Some(Err(status)),
                _ => tokio::time::sleep(CALL_RETRY_INTERVAL).await,
            }
        }
        None
    }

    fn violated(&self, what: String) {
        let mut violations = lock(&self.shared.violations);
        if violations.len() < MAX_VIOLATIONS {
            eprintln!("VIOLATED: {what}");
            violations.push(what);
        }
    }
}
