//! Follows one request and its lease through the watch stream, over broken streams and changes of the leader.

use std::collections::BTreeMap;
use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use comity_runtime::{Backoff, BrokerChannel, SystemEntropy};
use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::exit::Exit;
use crate::failure::{Failure, error_detail};
use crate::output::Answer;
use crate::views::{Lease, LeaseState, Request};

/// Broken streams in a row, without an event between, before it is given up.
const MAX_RETRIES: u32 = 30;
const RETRY_BASE: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(2);

/// A change of the request or of its lease.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind", content = "object")]
pub enum Change {
    /// The request changed.
    Request(Box<Request>),
    /// Its lease changed.
    Lease(Box<Lease>),
}

impl Answer for Change {
    fn table(&self, _now_ms: u64) -> String {
        let (id, state, message) = match self {
            Self::Request(request) => {
                (request.id.as_deref().unwrap_or("-"), request.state.as_str(), request.message.as_deref())
            }
            Self::Lease(lease) => (lease.id.as_str(), lease.state.as_str(), lease.message.as_deref()),
        };
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        format!("{id} {state}{message}\n")
    }
}

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Followed {
    /// The request as it was last seen.
    pub request: Request,
    /// Its lease, if there is one; of a gang the first of them.
    pub lease: Option<Lease>,
    /// The other leases of a gang over several donors.
    pub more: Vec<Lease>,
}

impl Followed {
    /// An error unless the lease is active.
    ///
    /// # Errors
    /// [`Failure`] with exit code 1: the request ended.
    pub fn into_result(self) -> Result<(), Failure> {
        if self.is_active() {
            return Ok(());
        }
        let id = self.request.id.unwrap_or_default();
        let why = self.request.message.map(|message| format!(": {message}")).unwrap_or_default();
        Err(Failure::refused("request-ended", format!("{id} is {}{why}", self.request.state.as_str()))
            .remedy(format!("see 'comity request show {id}'")))
    }

    fn is_active(&self) -> bool {
        !self.request.state.is_final() && self.lease.as_ref().is_some_and(|lease| lease.state == LeaseState::Active)
    }
}

/// Follows one request.
pub struct Follower {
    channel: BrokerChannel,
    request_id: String,
    request: Option<Request>,
    /// One an attempt, of which there are few.
    leases: BTreeMap<String, Lease>,
    resume: Resume,
}

impl Follower {
    /// A follower; nothing is called yet.
    #[must_use]
    pub fn new(channel: BrokerChannel, request: &str) -> Self {
        Self {
            channel,
            request_id: request.to_owned(),
            request: None,
            leases: BTreeMap::new(),
            resume: Resume::default(),
        }
    }

    /// Follows until the lease is active or the request ended; each change is told once.
    ///
    /// # Errors
    /// [`Failure`]: time is up (exit code 5), no such request, not permitted, or no broker for too long.
    pub async fn until_active(
        mut self,
        limit: Option<Duration>,
        mut tell: impl FnMut(&Change) -> Result<(), Failure>,
    ) -> Result<Followed, Failure> {
        let id = self.request_id.clone();
        let work = async {
            // The watch of a request that does not exist would wait for ever in silence.
            let mut requests = RequestServiceClient::new(self.channel.clone());
            let get = v1::GetRequestRequest { request: id.clone(), consistency: v1::Consistency::Linearizable.into() };
            crate::session::call(requests.get_request(get)).await?;
            self.run(&mut tell).await
        };
        let Some(limit) = limit else { return work.await };
        match tokio::time::timeout(limit, work).await {
            Ok(done) => done,
            Err(_) => {
                Err(Failure::new(Exit::Unavailable, "timeout", format!("{id} has no active lease after {limit:?}"))
                    .remedy(format!("it goes on: 'comity request watch {id}', or 'comity request explain {id}'")))
            }
        }
    }

    async fn run(&mut self, tell: &mut impl FnMut(&Change) -> Result<(), Failure>) -> Result<Followed, Failure> {
        let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
        loop {
            let broken = match self.stream(&mut backoff, tell).await? {
                Ok(followed) => return Ok(followed),
                Err(status) => status,
            };
            if is_resync(&broken) {
                self.resume = Resume::default();
            } else if !is_passing(&broken) || backoff.attempts() >= MAX_RETRIES {
                return Err(broken.into());
            }
            tokio::time::sleep(backoff.next_delay(&SystemEntropy)).await;
        }
    }

    /// One stream, to the end that was waited for (`Ok`) or to its own (`Err`).
    async fn stream(
        &mut self,
        backoff: &mut Backoff,
        tell: &mut impl FnMut(&Change) -> Result<(), Failure>,
    ) -> Result<Result<Followed, Status>, Failure> {
        let watch = v1::WatchRequest { from_revision: self.resume.from(), request: self.request_id.clone() };
        let mut client = WatchServiceClient::new(self.channel.clone());
        let mut events = match client.watch(watch).await {
            Ok(response) => response.into_inner(),
            Err(status) => return Ok(Err(status)),
        };
        loop {
            let event = match events.next().await {
                Some(Ok(event)) => event,
                Some(Err(status)) => return Ok(Err(status)),
                None => return Ok(Err(Status::unavailable("the broker ended the stream"))),
            };
            backoff.reset();
            if let Some(change) = self.take(event) {
                tell(&change)?;
            }
            if let Some(followed) = self.finished() {
                return Ok(Ok(followed));
            }
        }
    }

    /// Takes an event in; the change, unless it was seen before.
    fn take(&mut self, event: v1::WatchEvent) -> Option<Change> {
        use v1::watch_event::Object;
        let object = event.object?;
        self.resume.saw(event.revision, matches!(object, Object::Synced(_)));
        match object {
            Object::Request(request) if request.id == self.request_id => {
                let request = Request::from(request);
                let new = self.request.as_ref().is_none_or(|have| have.revision < request.revision);
                new.then(|| Change::Request(Box::new(self.request.insert(request).clone())))
            }
            Object::Lease(lease) if lease.request == self.request_id => {
                let lease = Lease::from(lease);
                let new = self.leases.get(&lease.id).is_none_or(|have| have.revision < lease.revision);
                new.then(|| {
                    self.leases.insert(lease.id.clone(), lease.clone());
                    Change::Lease(Box::new(lease))
                })
            }
            Object::Request(_) | Object::Lease(_) | Object::Peering(_) | Object::Cluster(_) | Object::Synced(_) => None,
        }
    }

    fn finished(&self) -> Option<Followed> {
        let request = self.request.clone()?;
        // The lease of an earlier attempt is not this request's.
        let lease = request.lease.as_ref().and_then(|id| self.leases.get(id)).cloned();
        // Of a gang all leases, so that its members can begin.
        let active = |id: &String| self.leases.get(id).is_some_and(|lease| lease.state == LeaseState::Active);
        let all = request.leases.iter().all(active);
        let others = request.leases.iter().filter(|id| request.lease.as_ref() != Some(*id));
        let more = others.filter_map(|id| self.leases.get(id)).cloned().collect();
        let followed = Followed { request, lease, more };
        (followed.request.state.is_final() || all && followed.is_active()).then_some(followed)
    }
}

/// Where a stream goes on. Several events may share a revision, so only a revision that a later one followed is known
/// to be whole; and a snapshot is whole with its `synced` only.
#[derive(Debug, Default)]
struct Resume {
    synced: bool,
    whole: u64,
    newest: u64,
}

impl Resume {
    fn from(&self) -> u64 {
        if self.synced { self.whole } else { 0 }
    }

    fn saw(&mut self, revision: u64, synced: bool) {
        if synced {
            (self.synced, self.whole) = (true, revision);
        } else if self.synced && revision > self.newest {
            self.whole = self.whole.max(self.newest);
        }
        self.newest = self.newest.max(revision);
    }
}

fn is_resync(status: &Status) -> bool {
    error_detail(status).is_some_and(|detail| detail.code == "resync-required")
}

/// Whether another try may go better.
fn is_passing(status: &Status) -> bool {
    use tonic::Code;
    matches!(
        status.code(),
        Code::Unavailable | Code::Aborted | Code::Cancelled | Code::DeadlineExceeded | Code::Internal | Code::Unknown
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_goes_on_after_the_last_whole_revision() {
        let mut resume = Resume::default();
        resume.saw(9, false);
        assert_eq!(resume.from(), 0, "a snapshot that was cut off is read again");
        resume.saw(9, true);
        assert_eq!(resume.from(), 9);
        resume.saw(11, false);
        assert_eq!(resume.from(), 9, "more events of revision 11 may follow");
        resume.saw(11, false);
        resume.saw(14, false);
        assert_eq!(resume.from(), 11);
    }

    fn event(revision: u64, object: v1::watch_event::Object) -> v1::WatchEvent {
        v1::WatchEvent { revision, object: Some(object) }
    }

    fn request(revision: u64, state: v1::RequestState, lease: &str) -> v1::WatchEvent {
        let (id, lease) = ("req-1".to_owned(), lease.to_owned());
        let request = v1::Request { id, state: state.into(), lease, revision, ..v1::Request::default() };
        event(revision, v1::watch_event::Object::Request(request))
    }

    fn lease(revision: u64, id: &str, state: v1::LeaseState) -> v1::WatchEvent {
        let (id, request) = (id.to_owned(), "req-1".to_owned());
        let lease = v1::Lease { id, request, state: state.into(), revision, ..v1::Lease::default() };
        event(revision, v1::watch_event::Object::Lease(lease))
    }

    fn follower() -> Follower {
        comity_runtime::install_crypto_provider();
        let roots = comity_runtime::CertificateAuthority::create(
            comity_runtime::TrustDomain::new("t.test").expect("good"),
            std::time::SystemTime::now(),
        )
        .expect("made");
        let tls = comity_runtime::ClientTls::anonymous(roots.roots().clone());
        Follower::new(comity_runtime::connect(&"127.0.0.1:1".parse().expect("good"), &tls), "req-1")
    }

    #[tokio::test]
    async fn the_active_lease_of_an_earlier_attempt_does_not_count() {
        let mut follower = follower();
        assert!(follower.take(request(20, v1::RequestState::Matched, "lease-2")).is_some());
        assert!(follower.take(lease(21, "lease-1", v1::LeaseState::Active)).is_some());
        assert_eq!(follower.finished(), None);
        assert!(follower.take(lease(15, "lease-2", v1::LeaseState::Active)).is_some());
        assert!(follower.take(lease(15, "lease-2", v1::LeaseState::Active)).is_none(), "each change is told once");
        assert!(follower.finished().expect("active").into_result().is_ok());
    }

    #[tokio::test]
    async fn a_gang_is_active_when_all_of_its_leases_are() {
        let mut follower = follower();
        let mut gang = request(20, v1::RequestState::Matched, "lease-2");
        if let Some(v1::watch_event::Object::Request(request)) = &mut gang.object {
            request.leases = vec!["lease-2".to_owned(), "lease-3".to_owned()];
        }
        follower.take(gang);
        follower.take(lease(21, "lease-2", v1::LeaseState::Active));
        assert_eq!(follower.finished(), None);
        follower.take(lease(22, "lease-3", v1::LeaseState::Active));
        let followed = follower.finished().expect("all are active");
        let ids: Vec<&str> = followed.lease.iter().chain(&followed.more).map(|lease| lease.id.as_str()).collect();
        assert_eq!(ids, ["lease-2", "lease-3"], "whoever waits is told of all of them");
    }

    #[tokio::test]
    async fn a_request_that_ended_is_an_error() {
        let mut follower = follower();
        follower.take(request(3, v1::RequestState::Failed, "lease-1"));
        let failure = follower.finished().expect("failed").into_result().expect_err("failed");
        assert_eq!((failure.exit, failure.code.as_str()), (Exit::Refused, "request-ended"));
    }
}
