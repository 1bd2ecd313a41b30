//! Calls the broker in the background, so that a silent broker does not keep pods from free local GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use comity_proto::v1;
use comity_runtime::Clock;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::plan::Submission;
use super::pod_client::PodClient;
use super::requests::{RequestError, Requests};
use super::snapshot::InFlight;

/// Concurrent calls to the broker.
const MAX_CALLS: usize = 32;
/// Calls running or queued.
const MAX_WAITING: usize = 1_024;
/// Pause after a failed call; doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest such pause.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Result of a call.
pub(super) enum Answer {
    Submitted { submission: Box<Submission>, result: Result<v1::Request, RequestError> },
    Cancelled { request: String, result: Result<(), RequestError> },
    Released { lease: String, result: Result<(), RequestError> },
    Renewed { lease: String, result: Result<(), RequestError> },
    Listed { began_ms: u64, result: Result<Vec<v1::Request>, RequestError> },
    Got { request: String, result: Result<v1::Request, RequestError> },
    Explained { request: String, result: Result<Box<v1::ExplainRequestResponse>, RequestError> },
    JobSize { uid: String, size: Option<u32> },
}

impl Answer {
    /// The error that the worker backs off for; the loop decides itself when to repeat submissions.
    fn failure(&self) -> Option<&RequestError> {
        match self {
            Self::Got { result: Err(RequestError::NotFound(_)), .. }
            | Self::Explained { result: Err(RequestError::NotFound(_)), .. }
            | Self::Submitted { .. }
            | Self::JobSize { .. } => None,
            // The loop remembers a refusal.
            Self::Renewed { result: Err(error @ RequestError::Unavailable(_)), .. } => Some(error),
            Self::Renewed { .. } => None,
            Self::Cancelled { result, .. } | Self::Released { result, .. } => result.as_ref().err(),
            Self::Listed { result, .. } => result.as_ref().err(),
            Self::Got { result, .. } => result.as_ref().err(),
            Self::Explained { result, .. } => result.as_ref().err(),
        }
    }
}

/// Calls in progress, deduplicated by key.
pub(super) struct Worker {
    requests: Arc<dyn Requests>,
    clock: Arc<dyn Clock>,
    places: Arc<Semaphore>,
    /// Consecutive failures by call.
    failures: BTreeMap<String, u32>,
    tasks: JoinSet<(String, Answer)>,
    under_way: BTreeSet<String>,
    in_flight: BTreeMap<String, InFlight>,
}

impl Worker {
    pub(super) fn new(requests: Arc<dyn Requests>, clock: Arc<dyn Clock>) -> Self {
        Self {
            requests,
            clock,
            places: Arc::new(Semaphore::new(MAX_CALLS)),
            failures: BTreeMap::new(),
            tasks: JoinSet::new(),
            under_way: BTreeSet::new(),
            in_flight: BTreeMap::new(),
        }
    }

    pub(super) fn in_flight(&self) -> Vec<InFlight> {
        self.in_flight.values().cloned().collect()
    }

    /// The next answer; pending while no call runs.
    pub(super) async fn answer(&mut self) -> Answer {
        loop {
            match self.tasks.join_next().await {
                None => std::future::pending::<()>().await,
                Some(Ok((key, answer))) => {
                    self.under_way.remove(&key);
                    self.in_flight.remove(&key);
                    self.note(key, &answer);
                    return answer;
                }
                // The key of a task that panicked is lost; cleared when no other task runs.
                Some(Err(error)) => {
                    tracing::error!(%error, "a call of burst ended badly");
                    if self.tasks.is_empty() {
                        self.under_way.clear();
                        self.in_flight.clear();
                    }
                }
            }
        }
    }

    /// Counts consecutive failures, and warns of the first.
    fn note(&mut self, key: String, answer: &Answer) {
        let Some(error) = answer.failure() else {
            self.failures.remove(&key);
            return;
        };
        if self.failures.len() >= MAX_WAITING {
            // Calls that are no longer made.
            self.failures.clear();
        }
        let failed = self.failures.entry(key).or_default();
        *failed += 1;
        if *failed == 1 {
            tracing::warn!(%error, "a call to the broker failed and is retried");
        } else {
            tracing::debug!(%error, failed, "a call to the broker failed again");
        }
    }

    fn begin(&mut self, key: String, call: impl Future<Output = Answer> + Send + 'static) -> bool {
        if self.under_way.len() >= MAX_WAITING || !self.under_way.insert(key.clone()) {
            return false;
        }
        let pause = pause(self.failures.get(&key).copied().unwrap_or(0));
        let (places, clock) = (Arc::clone(&self.places), Arc::clone(&self.clock));
        self.tasks.spawn(async move {
            if !pause.is_zero() {
                clock.sleep(pause).await;
            }
            // The semaphore is never closed.
            let _place = places.acquire_owned().await;
            (key, call.await)
        });
        true
    }

    pub(super) fn submit(&mut self, submission: Box<Submission>) {
        let (key, requests) = (submission.key.clone(), Arc::clone(&self.requests));
        let flight = InFlight {
            namespace: submission.request.target_namespace.clone(),
            gpus: submission.request.gpus.count,
            pods: submission.pods.iter().map(|pod| pod.uid.clone()).collect(),
        };
        let call = async move {
            let result = requests.submit(submission.request.to_message(), submission.key.clone()).await;
            Answer::Submitted { submission, result }
        };
        if self.begin(key.clone(), call) {
            self.in_flight.insert(key, flight);
        }
    }

    pub(super) fn cancel(&mut self, request: String) {
        let requests = Arc::clone(&self.requests);
        self.begin(format!("cancel {request}"), async move {
            let result = requests.cancel(request.clone(), format!("burst-cancel-{request}")).await;
            Answer::Cancelled { request, result }
        });
    }

    pub(super) fn release(&mut self, lease: String) {
        let requests = Arc::clone(&self.requests);
        self.begin(format!("give back {lease}"), async move {
            let result = requests.release(lease.clone(), format!("burst-release-{lease}")).await;
            Answer::Released { lease, result }
        });
    }

    pub(super) fn renew(&mut self, lease: String, expires_at_ms: u64) {
        let requests = Arc::clone(&self.requests);
        self.begin(format!("renew {lease}"), async move {
            let result = requests.renew(lease.clone(), format!("burst-renew-{lease}-{expires_at_ms}")).await;
            Answer::Renewed { lease, result }
        });
    }

    pub(super) fn list(&mut self, began_ms: u64) {
        let requests = Arc::clone(&self.requests);
        self.begin("list".to_owned(), async move { Answer::Listed { began_ms, result: requests.list().await } });
    }

    pub(super) fn get(&mut self, request: String) {
        let requests = Arc::clone(&self.requests);
        self.begin(format!("get {request}"), async move {
            let result = requests.get(request.clone()).await;
            Answer::Got { request, result }
        });
    }

    pub(super) fn explain(&mut self, request: String) {
        let requests = Arc::clone(&self.requests);
        self.begin(format!("explain {request}"), async move {
            let result = requests.explain(request.clone()).await.map(Box::new);
            Answer::Explained { request, result }
        });
    }

    pub(super) fn job_size(&mut self, pod_client: &PodClient, namespace: String, name: String, uid: String) {
        let pod_client = pod_client.clone();
        self.begin(format!("job {uid}"), async move {
            let size = pod_client.job_size(&namespace, &name, &uid).await;
            Answer::JobSize { uid, size }
        });
    }
}

/// Backoff after a number of consecutive failures.
fn pause(failed: u32) -> Duration {
    match failed.checked_sub(1) {
        None => Duration::ZERO,
        Some(before) => FIRST_PAUSE.saturating_mul(1 << before.min(16)).min(MAX_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let all: Vec<u128> = (0..9).map(|failed| pause(failed).as_millis()).collect();
        assert_eq!(all, [0, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        assert_eq!(pause(u32::MAX), MAX_PAUSE);
    }
}
