//! Leader election by a Lease object, as Kubernetes' own controllers do it.
//!
//! Only changes of the object count, and no clock of another machine: a candidate takes the Lease once it has seen the
//! same version of it for the holder's whole term. The holder's own deadline is earlier: it counts from before the
//! request that renewed, and is shorter by a margin. Every write names the version that it replaces, so that of two
//! candidates one succeeds.
//!
//! A Lease without a holder may have been deleted and made again while its holder still trusts it. So a candidate waits
//! for a term before it takes one, unless the holder gave it back, which writes a term of 1 s as client-go does.

use std::time::Duration;

use comity_agent_model::boot_time::BootTime;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};

use crate::api::CallError;
use crate::call::creating;

/// The part of the term, in percent, for which the holder trusts it.
const TRUSTED_PERCENT: u32 = 80;
/// How many times in a term the holder renews, and a candidate looks.
const ROUNDS_IN_A_TERM: u32 = 5;
/// The term of a Lease that its holder gave back, in seconds.
const RETURNED_TERM: i32 = 1;
/// Most attempts of a renewal while others change the Lease's metadata.
const MAX_TRIES: usize = 3;

/// Why the Lease cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LeaderLeaseError {
    /// The call failed.
    #[error("Lease {namespace}/{name}: {source}")]
    Call {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The error.
        #[source]
        source: CallError,
    },
    /// Others write to it at the same time.
    #[error("Lease {namespace}/{name}: others change it all the time")]
    Contended {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// The outcome of a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// Held until then.
    Until(BootTime),
    /// Another process holds it, or nobody does (empty).
    Lost(String),
}

/// This process as a candidate for a Lease, or its holder.
pub struct LeaderLease {
    api: Api<Lease>,
    namespace: String,
    name: String,
    /// This process, unlike any other.
    me: String,
    term: Duration,
    /// The newest version, and since when this process knows it.
    seen: Option<(Lease, BootTime)>,
    /// Until when this process trusts that it holds the Lease.
    held_until: Option<BootTime>,
}

impl LeaderLease {
    /// A candidate. `me` must differ between all processes, also after a restart.
    #[must_use]
    pub fn new(client: Client, namespace: &str, name: &str, me: String, term: Duration) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, namespace: namespace.to_owned(), name: name.to_owned(), me, term, seen: None, held_until: None }
    }

    /// Pause between two calls of [`try_take`](Self::try_take) or [`renew`](Self::renew).
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.term / ROUNDS_IN_A_TERM
    }

    /// Who holds it, as last seen; empty: nobody.
    #[must_use]
    pub fn holder(&self) -> &str {
        self.seen.as_ref().map_or("", |(lease, _)| holder(lease))
    }

    /// Takes the Lease if it is free, and returns until when it is held.
    ///
    /// # Errors
    /// [`LeaderLeaseError`].
    pub async fn try_take(&mut self) -> Result<Option<BootTime>, LeaderLeaseError> {
        let found = self.read().await?;
        let now = BootTime::now();
        let is_new = self.seen.as_ref().is_none_or(|(seen, _)| version(seen) != version(&found));
        if is_new {
            self.seen = Some((found, now));
        }
        let Some((seen, since)) = &self.seen else { return Ok(None) };
        if !is_free(seen, &self.me, now.saturating_duration_since(*since), self.term) {
            return Ok(None);
        }
        let wanted = self.claimed(seen);
        self.write(wanted).await
    }

    /// Renews a Lease that is held.
    ///
    /// # Errors
    /// [`LeaderLeaseError`]; it may be held still.
    pub async fn renew(&mut self) -> Result<Renewed, LeaderLeaseError> {
        for _ in 0..MAX_TRIES {
            if let Some((seen, _)) = &self.seen
                && let Some(until) = self.write(self.claimed(seen)).await?
            {
                return Ok(Renewed::Until(until));
            }
            if let Some(other) = self.read_again().await? {
                return Ok(Renewed::Lost(other));
            }
        }
        Err(self.contended())
    }

    /// Gives it back, so that another candidate takes it at once.
    ///
    /// # Errors
    /// [`LeaderLeaseError`]; it then ends by itself.
    pub async fn release(mut self) -> Result<(), LeaderLeaseError> {
        for _ in 0..MAX_TRIES {
            let Some((seen, _)) = &self.seen else { return Ok(()) };
            let mut freed = seen.clone();
            let spec = freed.spec.get_or_insert_default();
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(RETURNED_TERM);
            if self.write(freed).await?.is_some() {
                return Ok(());
            }
            // Without another try the successor would wait for a whole term.
            if self.read_again().await?.is_some() {
                return Ok(());
            }
        }
        Err(self.contended())
    }

    /// Reads the version of somebody who was faster; returns the holder if that is no longer this process.
    async fn read_again(&mut self) -> Result<Option<String>, LeaderLeaseError> {
        let found = self.read().await?;
        let now = BootTime::now();
        // Made again within the trusted term: no candidate may have taken it yet.
        let is_remade = holder(&found).is_empty() && self.held_until.is_some_and(|until| now < until);
        if holder(&found) != self.me && !is_remade {
            return Ok(Some(holder(&found).to_owned()));
        }
        self.seen = Some((found, now));
        Ok(None)
    }

    /// The Lease with this process as its holder.
    fn claimed(&self, lease: &Lease) -> Lease {
        let now = MicroTime(Timestamp::now());
        let mut lease = lease.clone();
        let is_taken = holder(&lease) != self.me;
        let spec = lease.spec.get_or_insert_default();
        if is_taken {
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        }
        spec.holder_identity = Some(self.me.clone());
        spec.lease_duration_seconds = Some(i32::try_from(self.term.as_secs()).unwrap_or(i32::MAX));
        spec.renew_time = Some(now);
        lease
    }

    /// Writes a version in place of the one that it was made from; `None` if somebody else was faster.
    async fn write(&mut self, lease: Lease) -> Result<Option<BootTime>, LeaderLeaseError> {
        let asked = BootTime::now();
        match self.within(self.api.replace(&self.name, &creating(), &lease)).await {
            Ok(written) => {
                let until = asked + self.term * TRUSTED_PERCENT / 100;
                (self.seen, self.held_until) = (Some((written, BootTime::now())), Some(until));
                Ok(Some(until))
            }
            Err(CallError::Status(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    async fn read(&self) -> Result<Lease, LeaderLeaseError> {
        self.within(self.api.get(&self.name)).await.map_err(|error| self.failed(error))
    }

    /// Bounds a call by the interval, so that the next attempt is on time.
    async fn within<T>(&self, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, CallError> {
        let late = |_| CallError::Connection(format!("no answer within {:?}", self.interval()));
        tokio::time::timeout(self.interval(), call).await.map_err(late)?.map_err(CallError::from)
    }

    fn contended(&self) -> LeaderLeaseError {
        LeaderLeaseError::Contended { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    fn failed(&self, source: CallError) -> LeaderLeaseError {
        LeaderLeaseError::Call { namespace: self.namespace.clone(), name: self.name.clone(), source }
    }
}

fn holder(lease: &Lease) -> &str {
    lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

fn version(lease: &Lease) -> Option<&str> {
    lease.metadata.resource_version.as_deref()
}

/// Whether a candidate may take a Lease that has been unchanged for `unchanged`.
fn is_free(lease: &Lease, me: &str, unchanged: Duration, own_term: Duration) -> bool {
    let written_term = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    let term = written_term.and_then(|term| u64::try_from(term).ok()).map_or(own_term, Duration::from_secs);
    match holder(lease) {
        "" => written_term == Some(RETURNED_TERM) || unchanged >= term.max(own_term),
        holder => holder == me || unchanged >= term,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    const TERM: Duration = Duration::from_secs(600);

    type Write = fn(&mut Lease);

    /// A Lease on an API server, and what others write to it just before the next writes of a candidate.
    #[derive(Clone, Default)]
    struct Stored {
        lease: Arc<Mutex<(Lease, u64)>>,
        others: Arc<Mutex<Vec<Write>>>,
    }

    impl Stored {
        fn change(&self, change: impl FnOnce(&mut Lease)) {
            let (lease, version) = &mut *self.lease.lock().unwrap();
            change(lease);
            *version += 1;
            lease.metadata.resource_version = Some(version.to_string());
        }

        /// Status and body of the answer.
        fn answer(&self, method: &Method, body: &[u8]) -> (u16, serde_json::Value) {
            if *method == Method::PUT {
                let other = self.others.lock().unwrap().pop();
                other.into_iter().for_each(|other| self.change(other));
                let wanted: Lease = serde_json::from_slice(body).unwrap();
                if version(&wanted) != version(&self.now()) {
                    let conflict = json!({
                        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409,
                        "message": "the object has been modified",
                    });
                    return (409, conflict);
                }
                self.change(|lease| *lease = wanted);
            }
            (200, serde_json::to_value(self.now()).unwrap())
        }

        fn now(&self) -> Lease {
            self.lease.lock().unwrap().0.clone()
        }

        fn client(&self) -> Client {
            let stored = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let stored = stored.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                    let (code, answer) = stored.answer(&head.method, &body);
                    let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                    answer.map_err(std::io::Error::other)
                }
            });
            Client::new(service, "default")
        }

        fn candidate(&self, me: &str) -> LeaderLease {
            LeaderLease::new(self.client(), "comity", "agent", me.to_owned(), TERM)
        }

        /// A candidate that holds the Lease.
        async fn holder(&self) -> LeaderLease {
            self.change(|lease| *lease = held_by("", Some(RETURNED_TERM)));
            let mut lease = self.candidate("first");
            assert!(lease.try_take().await.unwrap().is_some());
            lease
        }
    }

    fn annotate(lease: &mut Lease) {
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert("reviewed".to_owned(), annotations.len().to_string());
    }

    #[tokio::test]
    async fn a_successor_takes_over_at_once_although_others_changed_the_returned_lease() {
        let stored = Stored::default();
        let first = stored.holder().await;
        stored.others.lock().unwrap().extend([annotate as Write; 2]);
        first.release().await.unwrap();
        assert!(stored.others.lock().unwrap().is_empty());
        assert!(stored.now().metadata.annotations.is_some(), "what others wrote stays");
        assert!(stored.candidate("second").try_take().await.unwrap().is_some(), "it waits for a term");
    }

    #[tokio::test]
    async fn a_lease_that_another_process_has_is_not_given_back() {
        let stored = Stored::default();
        let first = stored.holder().await;
        stored.others.lock().unwrap().push(|lease| *lease = held_by("second", Some(600)));
        first.release().await.unwrap();
        assert_eq!(holder(&stored.now()), "second");

        let endless = Stored::default();
        let first = endless.holder().await;
        endless.others.lock().unwrap().extend([annotate as Write; MAX_TRIES]);
        assert!(matches!(first.release().await, Err(LeaderLeaseError::Contended { .. })));
    }

    #[tokio::test]
    async fn a_renewal_keeps_what_others_write() {
        let stored = Stored::default();
        let mut first = stored.holder().await;
        stored.others.lock().unwrap().push(annotate);
        assert!(matches!(first.renew().await.unwrap(), Renewed::Until(_)));
        assert!(stored.now().metadata.annotations.is_some());
        stored.others.lock().unwrap().push(|lease| *lease = held_by("second", Some(600)));
        assert_eq!(first.renew().await.unwrap(), Renewed::Lost("second".to_owned()));
    }

    fn held_by(holder: &str, term: Option<i32>) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: term,
            ..LeaseSpec::default()
        };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    #[test]
    fn a_lease_is_taken_when_free_or_unchanged_for_its_holders_term() {
        let seconds = Duration::from_secs;
        assert!(is_free(&held_by("", Some(RETURNED_TERM)), "me", seconds(0), seconds(6)), "given back");
        for remade in [Lease::default(), held_by("", None), held_by("", Some(6)), held_by("", Some(0))] {
            assert!(!is_free(&remade, "me", seconds(5), seconds(6)), "its holder may still trust it: {remade:?}");
            assert!(is_free(&remade, "me", seconds(6), seconds(6)));
        }
        assert!(is_free(&held_by("me", Some(10)), "me", seconds(0), seconds(6)));
        assert!(!is_free(&held_by("other", Some(10)), "me", seconds(9), seconds(6)), "the holder's term counts");
        assert!(is_free(&held_by("other", Some(10)), "me", seconds(10), seconds(60)));
        assert!(!is_free(&held_by("other", None), "me", seconds(5), seconds(6)));
    }
}
