//! Starts and stops a broker.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use comity_core::Command;
use comity_core::command::ApplyPolicy;
use comity_policy::{Bundle, BundleSource};
use comity_runtime::admin::{AdminError, AdminServer, BuildInfo, Readiness};
use comity_runtime::ca::{CaError, LiveAuthority};
use comity_runtime::clock::{Clock, SystemClock};
use comity_runtime::identity::{IdentityDir, IdentitySource, TrustedRoots};
use comity_runtime::shutdown::{Drained, Shutdown};
use comity_runtime::spiffe::SpiffeId;
use comity_runtime::tls::{ClientCertificates, ClientTls, ServerTls};
use tokio::net::TcpListener;

use crate::api::agent_streams::AgentStreams;
use crate::api::caller::Caller;
use crate::api::server;
use crate::api::shares::caller_turns::{CallerTurns, MAX_PROPOSALS_PER_CALLER};
use crate::api::shares::long_calls::LongCalls;
use crate::api::shares::refused_lately::RefusedLately;
use crate::api::shares::report_pace::ReportPace;
use crate::api::udp_probe::UdpProbeLimit;
use crate::config::{Config, ConfigError};
use crate::context::{Context, Validity};
use crate::disaster_recovery::remember_members;
use crate::group::{Consistency, Founded, Group, GroupConfig, GroupDeps, GroupError, Halt, Leadership};
use crate::metrics::Metrics;
use crate::policy_source::PolicyAccess;
use crate::provision::invitation_key::InvitationKey;
use crate::renewal::follow_authority::FollowAuthority;
use crate::renewal::{Renewal, RenewalError};
use crate::tasks;
use crate::watch::WatchHub;
use crate::watch::desired_pace::DesiredPace;

/// Streams get this long to end when the broker stops.
const DRAIN: Duration = Duration::from_secs(5);
/// Attempts to bind a port in use, and the pause between them: 2 s in all.
const BIND_TRIES: u32 = 40;
const BIND_PAUSE: Duration = Duration::from_millis(50);
/// Pause between reads while no leader answers.
const LEADER_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Flags of `comity-broker run` for the three ports.
const CLIENT_LISTEN: &str = "--client-listen";
const RAFT_LISTEN: &str = "--raft-listen";
const ADMIN_LISTEN: &str = "--admin-listen";
/// Maximum age of a connection, so that none outlives its certificate for long.
const LONGEST_CONNECTION: Duration = Duration::from_secs(3600);

/// Why a broker does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The authority's files.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The key of join tokens.
    #[error(transparent)]
    InvitationKey(#[from] ConfigError),
    /// This broker's certificate.
    #[error(transparent)]
    Identity(#[from] RenewalError),
    /// Log, snapshots or consensus.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A port cannot be bound.
    #[error("cannot listen on {address}: {source}; {}give another address with {flag}", free(.source))]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The flag of `comity-broker run` that sets the address.
        flag: &'static str,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

impl StartError {
    /// The address that another process listens on, if that is why the broker does not start.
    #[must_use]
    pub fn taken(&self) -> Option<SocketAddr> {
        match self {
            Self::Listen { address, source, .. } => is_taken(source).then_some(*address),
            Self::Ca(_) | Self::InvitationKey(_) | Self::Identity(_) | Self::Group(_) => None,
        }
    }
}

fn is_taken(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::AddrInUse
}

/// The remedy that only a taken port has.
fn free(error: &std::io::Error) -> &'static str {
    if is_taken(error) { "stop the process that uses this port (`ss -ltnp` lists it), or " } else { "" }
}

/// Addresses to listen on.
#[derive(Debug, Clone, Copy)]
pub struct ListenAddresses {
    /// For agents and users.
    pub client: SocketAddr,
    /// For other brokers.
    pub raft: SocketAddr,
    /// For metrics and probes.
    pub admin: SocketAddr,
}

/// Bound ports: their numbers are known before the broker starts.
#[derive(Debug)]
pub struct Listeners {
    /// For agents and users.
    pub client: TcpListener,
    /// For other brokers.
    pub raft: TcpListener,
}

impl Listeners {
    /// Binds the ports of a configuration.
    ///
    /// # Errors
    /// [`StartError::Listen`].
    pub async fn bind(config: &Config) -> Result<Self, StartError> {
        Ok(Self {
            client: bind(config.client_listen, CLIENT_LISTEN).await?,
            raft: bind(config.raft_listen, RAFT_LISTEN).await?,
        })
    }
}

impl Listeners {
    /// Finds out whether a broker could listen, and does not listen.
    ///
    /// # Errors
    /// [`StartError::Listen`].
    pub async fn check(addresses: &ListenAddresses) -> Result<(), StartError> {
        let ListenAddresses { client, raft, admin } = *addresses;
        for (address, flag) in [(client, CLIENT_LISTEN), (raft, RAFT_LISTEN), (admin, ADMIN_LISTEN)] {
            TcpListener::bind(address).await.map_err(|source| StartError::Listen { address, flag, source })?;
        }
        Ok(())
    }
}

/// Retries while the port is in use: a previous broker may still be releasing it.
async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, StartError> {
    let mut tried = 1;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if is_taken(&error) && tried < BIND_TRIES => tried += 1,
            Err(source) => return Err(StartError::Listen { address, flag, source }),
        }
        tokio::time::sleep(BIND_PAUSE).await;
    }
}

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    pub(crate) context: Context,
    client: SocketAddr,
    raft: SocketAddr,
    admin: AdminServer,
    /// Tasks that stop before leadership is handed over.
    serving: Shutdown,
    /// The Raft and admin ports, which stop last.
    below: Shutdown,
}

impl Broker {
    /// Starts a broker on the ports of its configuration. Calls are answered once its group has a leader.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let listeners = Listeners::bind(&config).await?;
        Self::start_on(config, listeners).await
    }

    /// Starts a broker on bound ports.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start_on(config: Config, listeners: Listeners) -> Result<Self, StartError> {
        comity_runtime::install_crypto_provider();
        let local = |listener: &TcpListener, address, flag| {
            listener.local_addr().map_err(|source| StartError::Listen { address, flag, source })
        };
        let client = local(&listeners.client, config.client_listen, CLIENT_LISTEN)?;
        let raft = local(&listeners.raft, config.raft_listen, RAFT_LISTEN)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let ca = LiveAuthority::new(FollowAuthority::load(&config.ca_dir(), config.ca_copy_dir().as_deref())?);
        let invitation_key = InvitationKey::load(&config.data)?;
        let renewal = renewal(&config, &ca, &clock);
        let identity = IdentitySource::new(renewal.load()?);

        let (serving, below) = (Shutdown::new(), Shutdown::new());
        let readiness = Readiness::new();
        let ready = readiness.guard("group");
        let metrics = Metrics::new();
        let admin = AdminServer::start(
            config.admin_listen,
            metrics.registry(),
            readiness,
            BuildInfo::of("comity-broker"),
            below.token(),
        )
        .await
        .map_err(|AdminError { address, source }| StartError::Listen {
            address,
            flag: ADMIN_LISTEN,
            source,
        })?;

        let hub = Arc::new(WatchHub::new(metrics.clone()));
        let deps = GroupDeps {
            observer: hub.clone(),
            clock: Arc::clone(&clock),
            tls: ClientTls::new(TrustedRoots::of(&identity), identity.subscribe()),
        };
        let group = Group::start(group_config(&config, &ca), deps).await?;
        metrics.show_log_syncs(group.log_sync_seconds());
        let pace = Arc::new(DesiredPace::new(Arc::clone(&clock)));
        let report_pace = ReportPace::new(Arc::clone(&clock));
        let refused_lately = RefusedLately::new(Arc::clone(&clock));
        let context = Context {
            id: config.settings.id,
            group: group.clone(),
            hub,
            ca: ca.clone(),
            invitation_key,
            clock,
            metrics,
            bootstrap_admins: Arc::new(config.settings.bootstrap_admins.clone()),
            validity: Validity { clusters: config.cluster_certificates, users: config.user_certificates },
            streams: AgentStreams::default(),
            probes: UdpProbeLimit::default(),
            pace,
            report_pace,
            proposal_turns: CallerTurns::new(MAX_PROPOSALS_PER_CALLER),
            refused_lately,
            policy_access: Arc::new(policy_access(&config)),
            audit_collector: config.audit_collector.clone().map(Arc::new),
            long_calls: LongCalls::default(),
            stop: serving.token(),
        };

        let age = connection_age(&config);
        let roots = TrustedRoots::of(&identity);
        let raft_tls =
            ServerTls::with_client_certificates(identity.subscribe(), roots.clone(), ClientCertificates::Required);
        group.hand_over_while_refusing(raft_tls.refused_for_time());
        below
            .spawn(log_end("raft", server::serve_brokers(group.clone(), listeners.raft, raft_tls, age, below.token())));
        let client_tls = ServerTls::new(identity.subscribe(), roots).with_http1();
        let clients = server::serve_clients(context.clone(), listeners.client, client_tls, age, serving.token());
        serving.spawn(log_end("clients", clients));
        serving.spawn(renewal.run(identity, group.clone(), serving.token()));
        serving.spawn(follow_authority(&config, &context).run(serving.token()));
        serving.spawn(tasks::run(context.clone(), serving.token()));
        serving.spawn(follow_readiness(group.clone(), ready, serving.token()));
        serving.spawn(catch_up(group.clone(), serving.token()));
        serving.spawn(remember_members::run(group.clone(), config.clone(), serving.token()));

        if config.must_found() {
            serving.spawn(found(group.clone(), config.founding_file(), serving.token()));
        }
        tracing::info!(broker = config.settings.id, %client, %raft, admin = %admin.local_addr(), "broker started");
        Ok(Self { context, client, raft, admin, serving, below })
    }

    /// The bound address for agents and users.
    #[must_use]
    pub const fn client_addr(&self) -> SocketAddr {
        self.client
    }

    /// The bound address for other brokers.
    #[must_use]
    pub const fn raft_addr(&self) -> SocketAddr {
        self.raft
    }

    /// The bound address of metrics and probes.
    #[must_use]
    pub const fn admin_addr(&self) -> SocketAddr {
        self.admin.local_addr()
    }

    /// This broker's handle on its group: status, reads, proposals.
    #[must_use]
    pub const fn group(&self) -> &Group {
        &self.context.group
    }

    /// Puts `source` into force in the name of `admin`, unless a bundle is in force already. Waits for a leader.
    /// Returns whether it was applied.
    ///
    /// # Errors
    /// The refusal, as text.
    pub async fn apply_first_policy(&self, source: &BundleSource, admin: &SpiffeId) -> Result<bool, String> {
        // With the offsets of its time zones.
        let compiled = Bundle::compile(source);
        let source = compiled.as_ref().map_or(source, Bundle::source).clone();
        let command = Command::ApplyPolicy(ApplyPolicy { source, force: false, expected_hash: None });
        let caller = Caller::User(admin.clone(), 0);
        loop {
            match self.context.group.read(Consistency::Linearizable, |state| state.policy.is_some()).await {
                Ok(true) => return Ok(false),
                Ok(false) => {
                    if let Err(problems) = &compiled {
                        let first = problems.first();
                        let first = first.map(|it| format!(", first {}:{}: {}", it.file, it.line, it.message));
                        return Err(format!("it has problems: {}{}", problems.len(), first.unwrap_or_default()));
                    }
                    if let Ok(applied) = self.context.propose(&caller, command.clone(), None).await {
                        return applied.reply.map(|_| true).map_err(|refusal| refusal.reason);
                    }
                }
                Err(_) => {}
            }
            tokio::time::sleep(LEADER_POLL_INTERVAL).await;
        }
    }

    /// Waits until this broker must leave its group, and returns the reason: the process should then exit.
    pub async fn failed(&self) -> Halt {
        self.context.group.stopped().await
    }

    /// Stops: ends streams, hands over leadership, closes the disk.
    pub async fn shutdown(self) {
        if let Drained::TimedOut { remaining } = self.serving.drain(DRAIN).await {
            tracing::warn!(remaining, "some tasks did not end in time");
        }
        self.context.group.shutdown().await;
        // Peers notice the closed connections.
        let _ = self.below.drain(Duration::from_millis(500)).await;
        self.admin.stopped().await;
    }
}

fn renewal(config: &Config, ca: &LiveAuthority, clock: &Arc<dyn Clock>) -> Renewal {
    Renewal {
        ca: ca.clone(),
        dir: IdentityDir::new(config.identity_dir()),
        id: SpiffeId::broker(ca.trust_domain().clone(), config.settings.id),
        settings: config.settings.clone(),
        validity: config.broker_certificates,
        clock: Arc::clone(clock),
    }
}

fn follow_authority(config: &Config, context: &Context) -> FollowAuthority {
    FollowAuthority {
        dir: config.ca_dir(),
        copy: config.ca_copy_dir(),
        ca: context.ca.clone(),
        clock: Arc::clone(&context.clock),
        metrics: context.metrics.clone(),
    }
}

/// What the leader needs to pull the policy. The cache can be fetched again.
fn policy_access(config: &Config) -> PolicyAccess {
    PolicyAccess {
        cache: config.data.join("policy-source"),
        credentials: config.policy_credentials.clone(),
        authorities: config.policy_ca.clone(),
        ssh_key: config.policy_ssh_key.clone(),
        known_hosts: config.policy_known_hosts.clone(),
        registry_config: config.policy_registry_config.clone(),
        artifact_keys: config.policy_oci_key.clone(),
        fetching: Arc::default(),
    }
}

fn group_config(config: &Config, ca: &LiveAuthority) -> GroupConfig {
    let mut group = GroupConfig::new(config.settings.id, config.group_dir(), ca.trust_domain().clone());
    group.timing = config.timing;
    group.snapshot_every = config.snapshot_every;
    group.members.clone_from(&config.settings.members);
    group
}

fn connection_age(config: &Config) -> Duration {
    let shortest = config.cluster_certificates.min(config.user_certificates).min(config.broker_certificates);
    LONGEST_CONNECTION.min(shortest / 4)
}

async fn log_end(name: &'static str, server: impl Future<Output = Result<(), tonic::transport::Error>>) {
    if let Err(error) = server.await {
        tracing::error!(name, %error, "listener ended");
    }
}

/// Founds the group once, then removes the founding file: a broker that loses its log must not found another group.
async fn found(group: Group, file: PathBuf, stop: tokio_util::sync::CancellationToken) {
    let founded = tokio::select! {
        founded = group.found() => founded,
        () = stop.cancelled() => return,
    };
    match founded {
        Ok(Founded::Here | Founded::JoinsInstead) => {
            if let Err(error) = std::fs::remove_file(&file) {
                tracing::warn!(file = %file.display(), %error, "remove this file by hand: the group exists");
            }
        }
        Err(error) => tracing::error!(%error, "no group is founded; mend broker.json and start this broker again"),
    }
}

/// Ready while a leader is known, once this broker has caught up with its group.
async fn follow_readiness(
    group: Group,
    ready: comity_runtime::admin::ReadinessGuard,
    stop: tokio_util::sync::CancellationToken,
) {
    let (mut leadership, mut caught_up) = (group.leadership(), group.caught_up());
    loop {
        let has_caught_up = *caught_up.borrow_and_update();
        match *leadership.borrow_and_update() {
            Leadership::Follower { leader: None } => ready.not_ready("no leader is known"),
            Leadership::Leader { .. } | Leadership::Follower { leader: Some(_) } if has_caught_up => ready.ready(),
            Leadership::Leader { .. } | Leadership::Follower { leader: Some(_) } => {
                ready.not_ready("this broker has not caught up with its group since its start");
            }
        }
        tokio::select! {
            changed = leadership.changed() => if changed.is_err() { return },
            changed = caught_up.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

/// Catches up with the group after the start, also if nobody calls.
async fn catch_up(group: Group, stop: tokio_util::sync::CancellationToken) {
    let caught_up = async {
        while group.catch_up().await.is_err() {
            tokio::time::sleep(LEADER_POLL_INTERVAL).await;
        }
    };
    let _ = stop.run_until_cancelled(caught_up).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_has_a_remedy() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7480));
        let error = |kind: ErrorKind| StartError::Listen { address, flag: ADMIN_LISTEN, source: kind.into() };
        let taken = error(ErrorKind::AddrInUse);
        assert_eq!(
            taken.to_string(),
            "cannot listen on 127.0.0.1:7480: address in use; stop the process that uses this port (`ss -ltnp` lists it), \
             or give another address with --admin-listen"
        );
        assert_eq!(taken.taken(), Some(address));
        let forbidden = error(ErrorKind::PermissionDenied);
        assert_eq!(
            forbidden.to_string(),
            "cannot listen on 127.0.0.1:7480: permission denied; give another address with --admin-listen"
        );
        assert_eq!(forbidden.taken(), None);
    }
}
