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
            // Somebody wrote to it.
            let found = self.read().await?;
            let now = BootTime::now();
            // Made again within the trusted term: no candidate may have taken it yet.
            let is_remade = holder(&found).is_empty() && self.held_until.is_some_and(|until| now < until);
            if holder(&found) != self.me && !is_remade {
                return Ok(Renewed::Lost(holder(&found).to_owned()));
            }
            self.seen = Some((found, now));
        }
        Err(LeaderLeaseError::Contended { namespace: self.namespace.clone(), name: self.name.clone() })
    }

    /// Gives it back, so that another candidate takes it at once.
    ///
    /// # Errors
    /// [`LeaderLeaseError`]; it then ends by itself.
    pub async fn release(mut self) -> Result<(), LeaderLeaseError> {
        let Some((seen, _)) = self.seen.take() else { return Ok(()) };
        let mut freed = seen;
        if let Some(spec) = &mut freed.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(RETURNED_TERM);
        }
        self.write(freed).await.map(drop)
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
mod tests {
    use super::*;
    use k8s_openapi::api::coordination::v1::LeaseSpec;

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
