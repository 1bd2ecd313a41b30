//! Follows one request and its leases on the watch stream; reconnects when the stream breaks or the leader changes.

use std::collections::BTreeMap;
use std::time::Duration;

use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use comity_proto::{error_detail, v1};
use comity_runtime::{Backoff, BrokerChannel, SystemEntropy};
use comity_types::LeaseState;
use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Answer, Format, Page, Sheet};
use crate::views::{Lease, Request};

/// Consecutive streams without an event before giving up.
const MAX_RETRIES: u32 = 30;
const RETRY_BASE: Duration = Duration::from_millis(50);
const RETRY_CAP: Duration = Duration::from_secs(2);

/// A change of the request or of one of its leases.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind", content = "object")]
pub enum Change {
    /// The request changed.
    Request(Box<Request>),
    /// A lease of the request changed.
    Lease(Box<Lease>),
}

impl Answer for Change {
    fn table(&self, now_ms: u64) -> Sheet {
        let (id, state, message) = match self {
            Self::Request(request) => {
                (request.id.as_deref().unwrap_or("-"), request.state.as_str().to_owned(), request.message.clone())
            }
            Self::Lease(lease) => (lease.id.as_str(), lease.state.to_string(), lease.message_text(now_ms)),
        };
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        format!("{id} {state}{message}").into()
    }
}

/// Changes as lines for people: a line that reads like the one before is not written again.
#[derive(Debug, Default)]
pub(super) struct ChangeLines {
    last: String,
}

impl ChangeLines {
    /// The line of a change, with its line break; empty if it reads like the one before.
    pub(super) fn next(&mut self, change: &Change, now_ms: u64, page: Page) -> Result<&str, Failure> {
        let line = Format::Table.render_event(change, now_ms, page)?;
        if line == self.last {
            return Ok("");
        }
        self.last = line;
        Ok(&self.last)
    }
}

/// The request and its leases when following ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Followed {
    /// The request's last state.
    pub request: Request,
    /// Its lease, if any; for a gang, the first one.
    pub lease: Option<Lease>,
    /// The other leases of a gang over several donors.
    pub other_leases: Vec<Lease>,
}

impl Followed {
    /// Fails unless the lease is active.
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
        !self.request.state.is_final() && self.lease.as_ref().is_some_and(|lease| lease.state.is(LeaseState::Active))
    }
}

/// Follows one request.
pub struct Follower {
    channel: BrokerChannel,
    request_id: String,
    request: Option<Request>,
    /// Leases by id: one per placement attempt and donor.
    leases: BTreeMap<String, Lease>,
    resume: Resume,
}

impl Follower {
    /// A follower; makes no call yet.
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

    /// Follows until the lease is active or the request ends; reports each change once.
    ///
    /// # Errors
    /// [`Failure`]: `limit` passed (exit code 5), no such request, not permitted, or no broker for too long.
    pub async fn until_active(
        mut self,
        limit: Option<Duration>,
        mut report: impl FnMut(&Change) -> Result<(), Failure>,
    ) -> Result<Followed, Failure> {
        let id = self.request_id.clone();
        let work = async {
            // Watching a request that does not exist would wait forever.
            self.check_exists().await?;
            self.run(&mut report).await
        };
        let Some(limit) = limit else { return work.await };
        match tokio::time::timeout(limit, work).await {
            Ok(done) => done,
            Err(_) => {
                Err(Failure::new(Exit::Unavailable, "timeout", format!("{id} has no active lease after {limit:?}"))
                    .remedy(format!(
                        "the request continues; see 'comity request watch {id}' or 'comity request explain {id}'"
                    )))
            }
        }
    }

    async fn check_exists(&self) -> Result<(), Failure> {
        let mut requests = RequestServiceClient::new(self.channel.clone());
        let consistency = v1::Consistency::Linearizable.into();
        let get = v1::GetRequestRequest { request: self.request_id.clone(), consistency };
        let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
        loop {
            match crate::session::call(requests.get_request(get.clone())).await {
                Ok(_) => return Ok(()),
                Err(failure) if failure.is_limit() && backoff.attempts() < MAX_RETRIES => {
                    tokio::time::sleep(backoff.next_delay(&SystemEntropy)).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn run(&mut self, report: &mut impl FnMut(&Change) -> Result<(), Failure>) -> Result<Followed, Failure> {
        let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
        loop {
            let status = match self.follow_stream(&mut backoff, report).await? {
                Ok(followed) => return Ok(followed),
                Err(status) => status,
            };
            if is_resync(&status) {
                self.resume = Resume::default();
            } else if !is_transient(&status) || backoff.attempts() >= MAX_RETRIES {
                return Err(status.into());
            }
            tokio::time::sleep(backoff.next_delay(&SystemEntropy)).await;
        }
    }

    /// Reads one stream until following ends (`Ok`) or the stream breaks (`Err`).
    async fn follow_stream(
        &mut self,
        backoff: &mut Backoff,
        report: &mut impl FnMut(&Change) -> Result<(), Failure>,
    ) -> Result<Result<Followed, Status>, Failure> {
        let watch = v1::WatchRequest { from_revision: self.resume.revision(), request: self.request_id.clone() };
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
            if let Some(change) = self.apply(event) {
                report(&change)?;
            }
            if let Some(followed) = self.finished() {
                return Ok(Ok(followed));
            }
        }
    }

    /// Applies an event; returns the change unless it was seen before.
    fn apply(&mut self, event: v1::WatchEvent) -> Option<Change> {
        use v1::watch_event::Object;
        let object = event.object?;
        match object {
            Object::Synced(_) => self.resume.synced(event.revision),
            _ => self.resume.saw(event.revision),
        }
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
        // Ignore the lease of an earlier attempt.
        let lease = request.lease.as_ref().and_then(|id| self.leases.get(id)).cloned();
        // A gang starts when all of its leases are active.
        let active = |id: &String| self.leases.get(id).is_some_and(|lease| lease.state.is(LeaseState::Active));
        let all = request.leases.iter().all(active);
        let others = request.leases.iter().filter(|id| request.lease.as_ref() != Some(*id));
        let other_leases = others.filter_map(|id| self.leases.get(id)).cloned().collect();
        let followed = Followed { request, lease, other_leases };
        (followed.request.state.is_final() || all && followed.is_active()).then_some(followed)
    }
}

/// The revision from which to resume the stream. Events may share a revision, so a revision is complete only once a
/// later one arrives; the initial snapshot is complete with its `synced` event.
#[derive(Debug, Default)]
struct Resume {
    has_snapshot: bool,
    complete: u64,
    newest: u64,
}

impl Resume {
    /// Revision to resume after; 0 for a new snapshot.
    fn revision(&self) -> u64 {
        if self.has_snapshot { self.complete } else { 0 }
    }

    /// Records the end of a snapshot.
    fn synced(&mut self, revision: u64) {
        self.has_snapshot = true;
        self.complete = revision;
        self.newest = self.newest.max(revision);
    }

    /// Records an event.
    fn saw(&mut self, revision: u64) {
        if self.has_snapshot && revision > self.newest {
            self.complete = self.complete.max(self.newest);
        }
        self.newest = self.newest.max(revision);
    }
}

fn is_resync(status: &Status) -> bool {
    error_detail(status).is_some_and(|detail| detail.code == "resync-required")
}

/// Whether a retry may succeed. A limit leaves room once others of the caller's streams and calls end.
fn is_transient(status: &Status) -> bool {
    use tonic::Code;
    let passes = matches!(
        status.code(),
        Code::Unavailable | Code::Aborted | Code::Cancelled | Code::DeadlineExceeded | Code::Internal | Code::Unknown
    );
    passes || Failure::from(status.clone()).is_limit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_resumes_after_the_last_complete_revision() {
        let mut resume = Resume::default();
        resume.saw(9);
        assert_eq!(resume.revision(), 0, "a snapshot that was cut off is read again");
        resume.synced(9);
        assert_eq!(resume.revision(), 9);
        resume.saw(11);
        assert_eq!(resume.revision(), 9, "more events of revision 11 may follow");
        resume.saw(11);
        resume.saw(14);
        assert_eq!(resume.revision(), 11);
    }

    #[test]
    fn a_watch_that_reached_a_limit_is_tried_again() {
        let refused = |code: &str| {
            let detail = v1::ErrorDetail { code: code.to_owned(), ..v1::ErrorDetail::default() };
            comity_proto::error_status(tonic::Code::ResourceExhausted, &detail, comity_proto::ErrorDetails::new())
        };
        assert!(is_transient(&refused("limit-reached")) && !is_transient(&refused("message-too-large")));
        assert!(is_transient(&Status::unavailable("")) && !is_transient(&Status::permission_denied("")));
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
        let brokers: comity_runtime::BrokerEndpoints = "127.0.0.1:1".parse().expect("good");
        Follower::new(comity_runtime::connect(&brokers, &tls), "req-1")
    }

    #[tokio::test]
    async fn the_active_lease_of_an_earlier_attempt_does_not_count() {
        let mut follower = follower();
        assert!(follower.apply(request(20, v1::RequestState::Placed, "lease-2")).is_some());
        assert!(follower.apply(lease(21, "lease-1", v1::LeaseState::Active)).is_some());
        assert_eq!(follower.finished(), None);
        assert!(follower.apply(lease(15, "lease-2", v1::LeaseState::Active)).is_some());
        assert!(follower.apply(lease(15, "lease-2", v1::LeaseState::Active)).is_none(), "each change is reported once");
        assert!(follower.finished().expect("active").into_result().is_ok());
    }

    #[tokio::test]
    async fn people_read_each_line_once() {
        let (mut follower, mut lines) = (follower(), ChangeLines::default());
        let mut line = |event| {
            let change = follower.apply(event).expect("a change");
            lines.next(&change, 0, Page::PLAIN).expect("a line").to_owned()
        };
        assert_eq!(line(lease(21, "lease-1", v1::LeaseState::Placed)), "lease-1 placed\n");
        assert_eq!(line(lease(22, "lease-1", v1::LeaseState::Placed)), "");
        assert_eq!(line(lease(23, "lease-1", v1::LeaseState::Connecting)), "lease-1 connecting\n");
        assert_eq!(line(lease(24, "lease-2", v1::LeaseState::Connecting)), "lease-2 connecting\n");
    }

    #[tokio::test]
    async fn a_gang_is_active_when_all_of_its_leases_are() {
        let mut follower = follower();
        let mut gang = request(20, v1::RequestState::Placed, "lease-2");
        if let Some(v1::watch_event::Object::Request(request)) = &mut gang.object {
            request.leases = vec!["lease-2".to_owned(), "lease-3".to_owned()];
        }
        follower.apply(gang);
        follower.apply(lease(21, "lease-2", v1::LeaseState::Active));
        assert_eq!(follower.finished(), None);
        follower.apply(lease(22, "lease-3", v1::LeaseState::Active));
        let followed = follower.finished().expect("all are active");
        let ids: Vec<&str> =
            followed.lease.iter().chain(&followed.other_leases).map(|lease| lease.id.as_str()).collect();
        assert_eq!(ids, ["lease-2", "lease-3"], "all leases are reported");
    }

    #[tokio::test]
    async fn a_request_that_ended_is_an_error() {
        let mut follower = follower();
        follower.apply(request(3, v1::RequestState::Failed, "lease-1"));
        let failure = follower.finished().expect("failed").into_result().expect_err("failed");
        assert_eq!((failure.exit, failure.code.as_str()), (Exit::Refused, "request-ended"));
    }
}
