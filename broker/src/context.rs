//! What every service has at hand, and the two ways to the group: propose and read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comity_core::log::Applied;
use comity_core::{Command, Idempotency, Refusal, ReplyBody, State, Timestamp};
use comity_policy::Bundle;
use comity_proto::v1;
use comity_runtime::ca::CertificateAuthority;
use comity_runtime::clock::Clock;
use comity_runtime::telemetry::current_traceparent;
use comity_runtime::tls::PeerInfo;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use crate::api::agent_streams::AgentStreams;
use crate::api::authorize::{Rpc, Viewer, authorize};
use crate::api::caller::Caller;
use crate::api::rpc_error::RpcError;
use crate::group::{Consistency, Group, Proposal, Unavailable};
use crate::metrics::Metrics;
use crate::watch::WatchHub;
use crate::watch::desired_pace::DesiredPace;

/// How long a reply waits for this broker to apply what the leader has committed already.
const CATCH_UP: Duration = Duration::from_secs(5);

/// How long certificates live.
#[derive(Debug, Clone, Copy)]
pub struct Validity {
    /// Those of clusters.
    pub clusters: Duration,
    /// Those of users.
    pub users: Duration,
}

/// What every service has at hand. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    /// Number of this broker.
    pub id: u64,
    /// The group.
    pub group: Group,
    /// Changes, and the policy in force.
    pub hub: Arc<WatchHub>,
    /// The federation's authority.
    pub ca: Arc<CertificateAuthority>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Counters.
    pub metrics: Metrics,
    /// SPIFFE ids that count as maintainers while no bundle is in force.
    pub bootstrap_admins: Arc<BTreeSet<String>>,
    /// How long certificates live.
    pub validity: Validity,
    /// Agents connected here.
    pub streams: AgentStreams,
    /// How much of the time goes into telling them what they must be.
    pub pace: Arc<DesiredPace>,
    /// Cancelled when this broker stops.
    pub stop: CancellationToken,
}

impl Context {
    /// Log time, now: never before that of the last entry, and whatever this broker's wall clock says.
    pub fn now(&self) -> Timestamp {
        self.group.log_now()
    }

    /// The same for certificates: a broker whose wall clock is wrong issues good ones.
    pub fn issued_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.now().0)
    }

    /// Who calls, once the table lets them.
    pub async fn admit<T>(&self, rpc: Rpc, request: &Request<T>) -> Result<Caller, RpcError> {
        let caller = Caller::of(request.extensions().get::<PeerInfo>(), self.group.inner.certificate_time())?;
        self.admit_caller(rpc, &caller).await?;
        Ok(caller)
    }

    /// Asks the table. A caller who is known but denied gets the newest bundle: this broker may lag behind the one that
    /// granted the role.
    async fn admit_caller(&self, rpc: Rpc, caller: &Caller) -> Result<(), RpcError> {
        let first = authorize(rpc, caller, self.hub.policy().as_deref(), &self.bootstrap_admins);
        let denied = match first {
            Ok(()) => return Ok(()),
            Err(denied) if *caller == Caller::Anonymous => Err(denied),
            Err(_) => {
                self.group.read(Consistency::Linearizable, |_| ()).await?;
                authorize(rpc, caller, self.hub.policy().as_deref(), &self.bootstrap_admins)
            }
        };
        if let Err(error) = &denied {
            tracing::info!(caller = caller.name(), rpc = ?rpc, "denied");
            self.metrics.refused(&error.detail().code);
        }
        denied
    }

    /// Asks the bundle in force something about one object; asks again with the newest one before it is a no.
    pub async fn permit(&self, ask: impl Fn(Option<&Bundle>) -> Result<(), Refusal>) -> Result<(), RpcError> {
        if ask(self.hub.policy().as_deref()).is_ok() {
            return Ok(());
        }
        self.group.read(Consistency::Linearizable, |_| ()).await?;
        ask(self.hub.policy().as_deref()).map_err(|refusal| {
            self.metrics.refused(refusal.code.as_str());
            refusal.into()
        })
    }

    /// What a caller may see under the bundle in force here.
    #[must_use]
    pub fn viewer(&self, caller: &Caller) -> Viewer {
        Viewer::of(caller, self.hub.policy().as_deref())
    }

    /// Commits a command of `caller`.
    pub async fn propose(
        &self,
        caller: &Caller,
        command: Command,
        idempotency: Option<Idempotency>,
    ) -> Result<Applied, Unavailable> {
        let traceparent = current_traceparent().unwrap_or_default();
        self.commit(Proposal { actor: caller.actor(), command, idempotency, traceparent }).await
    }

    /// Commits a proposal and counts it.
    pub async fn commit(&self, proposal: Proposal) -> Result<Applied, Unavailable> {
        let command = proposal.command.name();
        let began = self.clock.elapsed();
        let outcome = self.group.propose(proposal).await;
        let seconds = self.clock.elapsed().saturating_sub(began).as_secs_f64();
        self.metrics.proposed(command, seconds, &outcome);
        match &outcome {
            Ok(applied) => match &applied.reply {
                Ok(_) => tracing::debug!(command, revision = applied.revision, "committed"),
                Err(refusal) => {
                    tracing::info!(command, code = refusal.code.as_str(), reason = %refusal.reason, "refused")
                }
            },
            Err(error) => tracing::warn!(command, %error, "not committed"),
        }
        outcome
    }

    /// Commits a mutation and reads its outcome where this broker has applied it too.
    pub async fn mutate<T>(
        &self,
        caller: &Caller,
        command: Command,
        idempotency: Option<Idempotency>,
        read: impl FnOnce(&State, ReplyBody) -> Result<T, Refusal>,
    ) -> Result<T, RpcError> {
        let applied = self.propose(caller, command, idempotency).await?;
        let body = applied.reply?;
        self.caught_up(applied.revision).await?;
        Ok(self.group.read(Consistency::Stale, |state| read(state, body)).await??)
    }

    /// Waits until this broker has applied `revision`.
    async fn caught_up(&self, revision: u64) -> Result<(), RpcError> {
        let mut seen = self.group.revision();
        let caught_up = seen.wait_for(|seen| *seen >= revision);
        match tokio::time::timeout(CATCH_UP, caught_up).await {
            Ok(Ok(_)) => Ok(()),
            // The command is committed: repeating it with the same key gives the same answer from another broker.
            Ok(Err(_)) => Err(RpcError::Stopping),
            Err(_) => Err(Unavailable::ReadTimeout { waited: CATCH_UP }.into()),
        }
    }

    /// Reads with the freshness that a caller asked for.
    pub async fn read<T>(&self, consistency: i32, f: impl FnOnce(&State) -> Result<T, Refusal>) -> Result<T, RpcError> {
        let consistency = match v1::Consistency::try_from(consistency) {
            Ok(v1::Consistency::Unspecified | v1::Consistency::Linearizable) => Consistency::Linearizable,
            Ok(v1::Consistency::Stale) => Consistency::Stale,
            Err(_) => {
                return Err(Refusal::invalid(
                    "consistency",
                    consistency,
                    "is not a consistency that this broker knows",
                    "use CONSISTENCY_LINEARIZABLE (1) or CONSISTENCY_STALE (2)",
                )
                .into());
            }
        };
        Ok(self.group.read(consistency, f).await??)
    }

    /// Counts a refusal and makes the status of it.
    pub fn fail(&self, error: RpcError) -> Status {
        if !matches!(error, RpcError::Unavailable(_) | RpcError::Stopping) {
            self.metrics.refused(&error.detail().code);
        }
        error.into()
    }
}
