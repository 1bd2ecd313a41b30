//! One case: a new federation, a lease, the command, and what follows.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use comity_agent::services::local_api::{SOCKET, fetch_status};
use comity_runtime::{BrokerEndpoints, IdentityDir};

use super::GIVE_UP;
use super::effect::Effect;
use super::eviction_case::EvictionCase;
use super::lease_access::LeaseAccess;
use super::open_calls::OpenCalls;
use super::two_clusters::{BORROWING_CLUSTER, BORROWING_INSTITUTION, LENDING_CLUSTER, TwoClusters};
use crate::federation::broker_api::{channel, user_channel};
use crate::federation::{AgentSpec, Federation, FederationConfig, InventorySource};
use crate::process::Process;
use crate::wait::PATIENCE;

/// A user of the borrowing institution, who has no role elsewhere.
const BORROWING_USER: &str = "alice";
/// Brokers of the group.
const BROKER_IDS: [u64; 3] = [1, 2, 3];
/// GPUs of the lease.
const LEASED: u32 = 3;
/// Interval of questions to the agent whether it is connected.
const STATUS_INTERVAL: Duration = Duration::from_millis(50);

/// The federation of one case.
pub(super) struct EvictionRound {
    case: EvictionCase,
    federation: Federation,
}

impl EvictionRound {
    /// Measures a case; an offline donor is away for `offline`.
    ///
    /// # Errors
    /// When something does not start, the lease does not become active, or the command fails.
    pub(super) async fn measure(
        case: EvictionCase,
        clusters: &TwoClusters,
        offline: Duration,
    ) -> Result<Vec<(Effect, Duration)>> {
        let federation = Federation::start(FederationConfig::with_example_policy()).await?;
        let mut round = Self { case, federation };
        let measured = match case {
            EvictionCase::UserRevoked => round.revoke_user().await,
            EvictionCase::DonorStopped | EvictionCase::DonorKilled => round.revoke_offline(clusters, offline).await,
            EvictionCase::OriginEvicted | EvictionCase::InstitutionSuspended | EvictionCase::DonorEvicted => {
                round.revoke_online(clusters).await
            }
        };
        if measured.is_err() {
            eprintln!("{}", round.federation.logs());
        }
        measured
    }

    async fn revoke_user(&self) -> Result<Vec<(Effect, Duration)>> {
        let mut calls = OpenCalls::default();
        self.open_as_user(&mut calls).await?;
        self.revoke(calls, Instant::now()).await
    }

    async fn revoke_online(&mut self, clusters: &TwoClusters) -> Result<Vec<(Effect, Duration)>> {
        let access = self.borrow(clusters).await?;
        let calls = self.open_calls().await?;
        let since = Instant::now();
        let is_donor = self.case == EvictionCase::DonorEvicted;
        let lost =
            async { Ok(if is_donor { access.lost_at_origin(since).await } else { access.lost_at_donor(since).await }) };
        let (mut measured, lost) = tokio::try_join!(self.revoke(calls, since), lost)?;
        measured.extend(lost);
        Ok(measured)
    }

    async fn revoke_offline(&mut self, clusters: &TwoClusters, offline: Duration) -> Result<Vec<(Effect, Duration)>> {
        let access = self.borrow(clusters).await?;
        let calls = self.open_calls().await?;
        let donor = self.federation.agent_pid(LENDING_CLUSTER).context("the donor's agent runs")?;
        let is_killed = self.case == EvictionCase::DonorKilled;
        if is_killed {
            self.federation.kill_agent(LENDING_CLUSTER).await?;
        } else {
            Process::signal(donor, "STOP").await?;
        }
        let since = Instant::now();
        let mut measured = self.revoke(calls, since).await?;
        tokio::time::sleep(offline.saturating_sub(since.elapsed())).await;
        let back = Instant::now();
        if is_killed {
            self.federation.start_agent(LENDING_CLUSTER)?;
        } else {
            Process::signal(donor, "CONT").await?;
        }
        measured.extend(access.lost_at_donor(back).await);
        Ok(measured)
    }

    /// Starts both agents and waits for an active lease.
    async fn borrow(&mut self, clusters: &TwoClusters) -> Result<LeaseAccess> {
        clusters.forget_kubeconfigs().await?;
        let federation = &mut self.federation;
        for (cluster, plane) in [(BORROWING_CLUSTER, &clusters.origin), (LENDING_CLUSTER, &clusters.donor)] {
            let inventory = InventorySource::Kubernetes(plane.admin_kubeconfig_path());
            federation.join(AgentSpec::new(cluster, inventory)).await?;
        }
        federation.all_connected().await?;
        let request = federation.submit(LEASED, "frontier").await?;
        let lease = federation.lease_of(&request).await?;
        let active = federation.lease_in(&lease, "active", PATIENCE).await?;
        let kubeconfig = federation.kubeconfig(&lease, BORROWING_CLUSTER).await?;
        LeaseAccess::open(clusters, &active, &kubeconfig).await
    }

    /// The cluster whose part ends.
    fn cluster(&self) -> Option<&'static str> {
        match self.case {
            EvictionCase::UserRevoked => None,
            EvictionCase::DonorEvicted => Some(LENDING_CLUSTER),
            EvictionCase::OriginEvicted
            | EvictionCase::DonorStopped
            | EvictionCase::DonorKilled
            | EvictionCase::InstitutionSuspended => Some(BORROWING_CLUSTER),
        }
    }

    async fn open_calls(&self) -> Result<OpenCalls> {
        let mut calls = OpenCalls::default();
        if let Some(cluster) = self.cluster() {
            self.open_as_cluster(cluster, &mut calls).await?;
        }
        if self.case == EvictionCase::InstitutionSuspended {
            self.open_as_user(&mut calls).await?;
        }
        Ok(calls)
    }

    fn broker(&self, id: u64) -> Result<BrokerEndpoints> {
        Ok(BrokerEndpoints::new([self.federation.broker_address(id)?])?)
    }

    async fn open_as_user(&self, calls: &mut OpenCalls) -> Result<()> {
        for id in BROKER_IDS {
            let channel = user_channel(self.federation.dir(), BORROWING_USER, &self.broker(id)?)?;
            calls.watch(format!("the watch of {BORROWING_USER} on broker {id}"), channel).await?;
        }
        Ok(())
    }

    /// Opens calls with a copy of the agent's certificate. A second stream on the broker of the agent's own stream
    /// would take its place, so there is none.
    async fn open_as_cluster(&self, cluster: &str, calls: &mut OpenCalls) -> Result<()> {
        let (pem, _) = IdentityDir::new(self.federation.agent_dir(cluster).join("identity")).load()?;
        let taken = self.broker_of_agent(cluster)?;
        for id in BROKER_IDS {
            let broker = self.broker(id)?;
            calls.watch(format!("the watch of {cluster} on broker {id}"), channel(&broker, &pem)?).await?;
            if id != taken {
                calls.stream(format!("the stream of {cluster} on broker {id}"), channel(&broker, &pem)?).await?;
            }
        }
        Ok(())
    }

    /// The broker that the agent's own stream is connected to, by its log.
    fn broker_of_agent(&self, cluster: &str) -> Result<u64> {
        let log = self.federation.log_of(cluster)?;
        let connected = log.lines().rev().find(|line| line.contains("connected to the broker group"));
        let number = connected.and_then(|line| line.split("broker=").nth(1)).unwrap_or_default();
        let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().with_context(|| format!("no line in the log of {cluster} names its broker"))
    }

    /// Gives the command, and waits until all calls have ended and further ones are refused, on every broker.
    async fn revoke(&self, mut calls: OpenCalls, since: Instant) -> Result<Vec<(Effect, Duration)>> {
        calls.still_open()?;
        let further = calls.for_calls();
        let (_, copies, own, refused) = tokio::try_join!(
            self.command(),
            calls.all_end(since),
            async { Ok(self.own_stream_ends(since).await) },
            async { Ok(further.all_refused(since).await) },
        )?;
        Ok(vec![(Effect::Streams, copies.max(own)), (Effect::Calls, refused)])
    }

    async fn command(&self) -> Result<()> {
        let args: &[&str] = match self.case {
            EvictionCase::UserRevoked => &["user", "revoke", BORROWING_USER, "--yes"],
            EvictionCase::InstitutionSuspended => {
                &["institution", "suspend", BORROWING_INSTITUTION, "--leases", "stop", "--yes"]
            }
            EvictionCase::OriginEvicted | EvictionCase::DonorStopped | EvictionCase::DonorKilled => {
                &["cluster", "evict", BORROWING_CLUSTER, "--leases", "stop", "--yes"]
            }
            EvictionCase::DonorEvicted => &["cluster", "evict", LENDING_CLUSTER, "--leases", "stop", "--yes"],
        };
        self.federation.comity_as("admin", args).await.map(drop)
    }

    /// The time from `since` until the agent itself says that it is not connected; zero for a user.
    async fn own_stream_ends(&self, since: Instant) -> Duration {
        let Some(cluster) = self.cluster() else { return Duration::ZERO };
        let socket = self.federation.agent_dir(cluster).join(SOCKET);
        while since.elapsed() < GIVE_UP {
            if fetch_status(&socket).await.is_ok_and(|status| !status.connected) {
                return since.elapsed();
            }
            tokio::time::sleep(STATUS_INTERVAL).await;
        }
        GIVE_UP
    }
}
