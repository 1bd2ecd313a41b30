//! The context that all services share: propose to the group, read its state, authorize callers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comity_audit::{Hash, TreeHead, consistency_proof};
use comity_core::reply::Applied;
use comity_core::{Command, Idempotency, Refusal, ReplyBody, State, Timestamp, snapshot};
use comity_policy::Bundle;
use comity_proto::{RequiredFields, v1};
use comity_runtime::ca::LiveAuthority;
use comity_runtime::clock::Clock;
use comity_runtime::telemetry::current_traceparent;
use comity_runtime::tls::PeerInfo;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

use crate::api::agent_streams::AgentStreams;
use crate::api::authorize::{Rpc, authorize};
use crate::api::caller::Caller;
use crate::api::caller_life::CallerLife;
use crate::api::rpc_error::RpcError;
use crate::api::shares::caller_turns::CallerTurns;
use crate::api::shares::long_calls::LongCalls;
use crate::api::shares::refused_lately::RefusedLately;
use crate::api::shares::report_pace::ReportPace;
use crate::api::udp_probe::UdpProbeLimit;
use crate::api::viewer::Viewer;
use crate::api::visible_names::VisibleNames;
use crate::audit_collector::AuditCollector;
use crate::group::{Consistency, Group, Proposal, Unavailable};
use crate::metrics::Metrics;
use crate::policy_source::PolicyAccess;
use crate::provision::invitation_key::InvitationKey;
use crate::watch::WatchHub;
use crate::watch::desired_pace::DesiredPace;

/// How long a reply waits for this broker to apply a committed entry.
const APPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Validity of issued certificates.
#[derive(Debug, Clone, Copy)]
pub struct Validity {
    /// Cluster certificates.
    pub clusters: Duration,
    /// User certificates.
    pub users: Duration,
}

/// Shared by all services. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    /// Number of this broker.
    pub id: u64,
    /// The group.
    pub group: Group,
    /// Changes, and the policy in force.
    pub hub: Arc<WatchHub>,
    /// The federation's authority, as it is now.
    pub ca: LiveAuthority,
    /// From which the secrets of join tokens are derived.
    pub invitation_key: InvitationKey,
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
    /// Limits datagrams to joining clusters.
    pub probes: UdpProbeLimit,
    /// Limits the share of time spent on desired states.
    pub pace: Arc<DesiredPace>,
    /// Limits how fast each cluster reports.
    pub report_pace: ReportPace,
    /// Limits the commands of each caller under way.
    pub proposal_turns: CallerTurns,
    /// Callers whose requests no donor could serve.
    pub refused_lately: RefusedLately,
    /// Where the policy's repository is fetched to, and with which credentials.
    pub policy_access: Arc<PolicyAccess>,
    /// Where the leader sends the audit log.
    pub audit_collector: Option<Arc<AuditCollector>>,
    /// Quotes, explanations and checks of policy.
    pub long_calls: LongCalls,
    /// Cancelled when this broker stops.
    pub stop: CancellationToken,
}

/// Refuses a message without all of its required fields.
pub fn complete(message: &impl RequiredFields) -> Result<(), RpcError> {
    let missing = message.missing();
    if missing.is_empty() { Ok(()) } else { Err(RpcError::Missing(missing)) }
}

fn consistency_of(asked: i32) -> Result<Consistency, Refusal> {
    match v1::Consistency::try_from(asked) {
        Ok(v1::Consistency::Unspecified | v1::Consistency::Linearizable) => Ok(Consistency::Linearizable),
        Ok(v1::Consistency::Stale) => Ok(Consistency::Stale),
        Err(_) => Err(Refusal::invalid(
            "consistency",
            asked,
            "is not a consistency that this broker knows",
            "use CONSISTENCY_LINEARIZABLE (1) or CONSISTENCY_STALE (2)",
        )),
    }
}

impl Context {
    /// Current log time: at least that of the last entry, independent of this broker's wall clock.
    pub fn now(&self) -> Timestamp {
        self.group.log_now()
    }

    /// Log time as issue time of certificates: a broker whose wall clock is wrong still issues valid ones.
    pub fn issued_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.now().0)
    }

    /// Authenticates the caller, checks `rpc` against the authorization table, and the message for missing fields.
    pub async fn admit<T: RequiredFields>(&self, rpc: Rpc, request: &Request<T>) -> Result<Caller, RpcError> {
        Ok(self.admit_long(rpc, request).await?.caller().clone())
    }

    /// As [`admit`](Self::admit), for a call that may take long: [`read_long`](Self::read_long) and
    /// [`compute_long`](Self::compute_long) end with the caller.
    pub async fn admit_long<T: RequiredFields>(&self, rpc: Rpc, request: &Request<T>) -> Result<CallerLife, RpcError> {
        let life = self.admit_stream(rpc, request).await?;
        complete(request.get_ref())?;
        Ok(life)
    }

    /// Authenticates the caller of a stream and checks `rpc` against the authorization table. The stream must end with
    /// [`caller_ended`](Self::caller_ended).
    pub async fn admit_stream<T>(&self, rpc: Rpc, request: &Request<T>) -> Result<CallerLife, RpcError> {
        let life = CallerLife::begin(request.extensions().get::<PeerInfo>().cloned(), rpc, &self.group).await?;
        self.admit_caller(rpc, life.caller()).await?;
        Ok(life)
    }

    /// Waits until a call must end because of its caller.
    pub async fn caller_ended(&self, life: &CallerLife) -> RpcError {
        life.ended(&self.group, self.clock.as_ref(), self.hub.revocations()).await
    }

    /// Checks the table; before denying a known caller, checks again under the newest bundle: this broker may lag
    /// behind the bundle that granted the role.
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

    /// Checks one object against the bundle in force; before refusing, checks again under the newest bundle.
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

    /// The caller's view under this broker's bundle.
    #[must_use]
    pub fn viewer(&self, caller: &Caller) -> Viewer {
        Viewer::of(caller, self.hub.policy().as_deref())
    }

    /// Commits a command of `caller`, in its turn.
    pub async fn propose(
        &self,
        caller: &Caller,
        command: Command,
        idempotency: Option<Idempotency>,
    ) -> Result<Applied, Unavailable> {
        let _turn = self.proposal_turns.take(caller).await;
        let traceparent = current_traceparent().unwrap_or_default();
        self.commit(Proposal {
            actor: caller.actor(),
            generation: caller.generation(),
            command,
            idempotency,
            traceparent,
        })
        .await
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

    /// Commits a command, waits until this broker has applied it, and reads the outcome.
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
        match tokio::time::timeout(APPLY_TIMEOUT, caught_up).await {
            Ok(Ok(_)) => Ok(()),
            // The command is committed: repeating it with the same key gives the same answer from another broker.
            Ok(Err(_)) => Err(RpcError::Stopping),
            Err(_) => Err(Unavailable::ReadTimeout { waited: APPLY_TIMEOUT }.into()),
        }
    }

    /// Reads with the consistency of a request. `f` must be quick: no entry is applied meanwhile.
    pub async fn read<T>(&self, consistency: i32, f: impl FnOnce(&State) -> Result<T, Refusal>) -> Result<T, RpcError> {
        Ok(self.group.read(consistency_of(consistency)?, f).await??)
    }

    /// A copy of the records with the consistency of a request: what looks at many of them, such as a list, must not
    /// hold up apply. Sums and other indexes are missing.
    pub async fn copy(&self, consistency: i32) -> Result<State, RpcError> {
        Ok(self.group.read(consistency_of(consistency)?, snapshot::copy).await?)
    }

    /// Computes an answer from a copy of the state that includes everything acknowledged before the call.
    ///
    /// # Errors
    /// [`RpcError::LimitReached`] where the caller, its institution or this broker has too many long calls under way;
    /// why the caller ended.
    pub async fn read_long<T, F>(&self, life: &CallerLife, what: &'static str, read: F) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: FnOnce(&State) -> T + Send + 'static,
    {
        let answer = async {
            let call = self.long_calls.begin(life.caller(), self.hub.policy().as_deref()).await?;
            // In the caller's turn, so that a storm of its calls asks the other brokers once at a time.
            self.group.catch_up().await?;
            self.long_calls.read(call, |known| self.group.copy_after(known), what, read).await
        };
        self.unless_ended(life, answer).await
    }

    /// Computes an answer without the state, as a long call.
    ///
    /// # Errors
    /// As [`read_long`](Self::read_long).
    pub async fn compute_long<T, F>(&self, life: &CallerLife, what: &'static str, compute: F) -> Result<T, RpcError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let answer = async {
            let call = self.long_calls.begin(life.caller(), self.hub.policy().as_deref()).await?;
            self.long_calls.compute(call, what, compute).await
        };
        self.unless_ended(life, answer).await
    }

    async fn unless_ended<T>(
        &self,
        life: &CallerLife,
        answer: impl Future<Output = Result<T, RpcError>>,
    ) -> Result<T, RpcError> {
        let ended = async { Err(self.caller_ended(life).await) };
        tokio::select! {
            ended = ended => ended,
            answer = answer => answer,
        }
    }

    /// The audit log at `now`, with the proof that it continues its first `from` records; `None` while this broker
    /// lacks some. Without a proof if there were more records then: the log is another one.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn audit_proof(&self, from: u64, now: TreeHead) -> std::io::Result<Option<v1::AuditProof>> {
        let store = self.group.audit_store();
        let prove = move || {
            store.flush()?;
            store.tree(|tree| consistency_proof(tree, from.min(now.size), now.size))
        };
        let hashes = tokio::task::spawn_blocking(prove).await.map_err(std::io::Error::other)??;
        let head = Some(v1::AuditHead { size: now.size, root: now.root.to_string() });
        Ok(hashes.map(|hashes| v1::AuditProof { head, hashes: hashes.iter().map(Hash::to_string).collect() }))
    }

    /// The same error; a refusal because of an unknown name suggests the nearest one that the caller may be told.
    #[must_use]
    pub fn with_suggestion(&self, caller: &Caller, error: RpcError) -> RpcError {
        match error {
            RpcError::Refused(refusal) => {
                VisibleNames::of(caller, self.hub.policy().as_deref()).suggest(refusal).into()
            }
            other => other,
        }
    }

    /// Counts a refusal and converts it to a gRPC status.
    pub fn fail(&self, error: RpcError) -> Status {
        if !matches!(error, RpcError::Unavailable(_) | RpcError::Stopping) {
            self.metrics.refused(&error.detail().code);
        }
        error.into()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;

    use comity_core::command::RevokeUser;
    use comity_core::{Actor, refusal};
    use comity_runtime::spiffe::{SpiffeId, TrustDomain, UserName};
    use comity_types::LeaseTreatment;
    use tokio::net::TcpListener;

    use super::*;
    use crate::config::{Config, Settings};
    use crate::group::MemberAddress;
    use crate::provision::{self, Init};
    use crate::{Broker, Listeners};

    /// A broker that leads a group of its own.
    async fn leader(home: &std::path::Path) -> Broker {
        let listen = || TcpListener::bind("127.0.0.1:0");
        let listeners = Listeners { client: listen().await.unwrap(), raft: listen().await.unwrap() };
        let at = |listener: &TcpListener| listener.local_addr().unwrap().to_string();
        let address = MemberAddress { raft: at(&listeners.raft), client: at(&listeners.client) };
        let settings = Settings {
            id: 1,
            members: BTreeMap::from([(1, address)]),
            bootstrap_admins: BTreeSet::new(),
            hosts: BTreeSet::new(),
        };
        let init = Init {
            data: home.join("broker-1"),
            trust_domain: TrustDomain::new("dev.test").unwrap(),
            settings,
            admin: UserName::new("admin").unwrap(),
            admin_out: home.join("admin"),
        };
        provision::init(&init).unwrap();
        let mut config = Config::load(&init.data).unwrap();
        config.admin_listen = "127.0.0.1:0".parse().unwrap();
        let broker = Broker::start_on(config, listeners).await.unwrap();
        broker.group().leadership().wait_for(|now| now.is_leader()).await.unwrap();
        broker
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn revoked_user_gets_answer_of_long_call() {
        let home = tempfile::tempdir().unwrap();
        let broker = leader(home.path()).await;
        let context = &broker.context;
        let id = |name: &str| SpiffeId::user(TrustDomain::new("dev.test").unwrap(), UserName::new(name).unwrap());
        let peer = PeerInfo { spiffe: Some(id("alice")), ..PeerInfo::anonymous("127.0.0.1:1".parse().unwrap()) };
        let life = CallerLife::begin(Some(peer), Rpc::QuoteRequest, &context.group).await.unwrap();
        let (release, wait) = mpsc::channel::<()>();
        let (started, computes) = tokio::sync::oneshot::channel();
        // One computes; the others wait for their turn.
        let read = context.read_long(&life, "testing", move |_| {
            started.send(()).unwrap();
            let _ = wait.recv();
        });
        let next = async {
            computes.await.unwrap();
            let revoke = async {
                let leases = LeaseTreatment::Finish;
                let command = RevokeUser { user: "alice".to_owned(), allow_unknown: true, leases };
                let admin = Caller::User(id("admin"), 0);
                assert_eq!(admin.actor(), Actor::User("spiffe://dev.test/user/admin".to_owned()));
                context.propose(&admin, Command::RevokeUser(command), None).await.unwrap().reply.unwrap();
            };
            tokio::join!(context.compute_long(&life, "testing", || ()), revoke).0
        };
        let ends = async { tokio::join!(read, next) };
        let (first, second) = tokio::time::timeout(Duration::from_secs(20), ends).await.unwrap();
        for ended in [first, second] {
            let Err(RpcError::Refused(refusal)) = ended else { panic!("{ended:?}") };
            assert_eq!(refusal.code, refusal::Code::Revoked, "{refusal}");
        }
        drop(release);
        broker.shutdown().await;
    }
}
