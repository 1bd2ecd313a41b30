//! The brokers of the run, and what can be asked of them from the outside.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use comity_proto::v1;
use comity_proto::v1::raft_service_client::RaftServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::{BrokerChannel, BrokerEndpoints};

use super::host::Hosts;
use crate::federation::{Federation, FederationConfig, Place};
use crate::process::Process;
use crate::stores::{channel, origin, terms};
use crate::wait::until;

/// Numbers of the brokers.
pub(super) const MEMBERS: RangeInclusive<u64> = 1..=3;
/// Entries between two snapshots: few, so that who was away gets one.
const SNAPSHOT_EVERY: u64 = 2_000;
/// One look at a broker.
const LOOK: Duration = Duration::from_secs(2);
/// Reading everything from one.
const READ: Duration = Duration::from_secs(30);
/// After a fault, and after the last one, all must be well within this time.
pub(super) const RECOVERY: Duration = Duration::from_secs(90);
/// Entries that a broker may be behind and is well.
const BEHIND: u64 = 200;
/// Items of a page, the most that there can be.
const PAGE: u32 = 500;

/// Tenant of requests that come and go; all that wait fit into one answer.
pub(super) fn moving() -> String {
    terms::tenant(0)
}

/// Tenant of requests that stay.
pub(super) fn kept() -> String {
    terms::tenant(1)
}

/// Three brokers on hosts of their own.
pub(super) struct Group {
    federation: Federation,
    pub(super) hosts: Hosts,
    _policy: tempfile::TempDir,
}

impl Drop for Group {
    fn drop(&mut self) {
        // Before the directories under which they are mounted are removed.
        self.hosts.unmount();
    }
}

impl Group {
    /// Starts it.
    ///
    /// # Errors
    /// When it does not come up.
    pub(super) async fn start() -> Result<Self> {
        let policy = tempfile::tempdir()?;
        terms::write(policy.path())?;
        let mut hosts = Hosts::make()?;
        let config = FederationConfig {
            brokers: *MEMBERS.end(),
            policy: policy.path().to_owned(),
            place: Place::here(),
            snapshot_every: SNAPSHOT_EVERY,
            cluster_certificates_s: 86_400,
        };
        let places = hosts.places();
        let federation = Federation::start_at(config, places, |id, data| hosts.mount(id, data)).await?;
        let group = Self { federation, hosts, _policy: policy };
        origin::join(group.channel_from("admin", 0)?, terms::ORIGIN).await?;
        until("the group to be well", RECOVERY, async || group.well().await.map(Some)).await?;
        Ok(group)
    }

    /// A channel to all brokers, beginning with one of them.
    pub(super) fn channel_from(&self, user: &str, first: usize) -> Result<BrokerChannel> {
        let brokers = BrokerEndpoints::new(self.federation.broker_addresses())?;
        channel(&self.federation, user, &brokers.starting_at(first))
    }

    fn channel_to(&self, user: &str, id: u64) -> Result<BrokerChannel> {
        let addresses = self.federation.broker_addresses();
        let address = addresses.get(usize::try_from(id)? - 1).context("brokers are 1 to 3")?;
        channel(&self.federation, user, &BrokerEndpoints::new([address])?)
    }

    async fn status(&self, id: u64) -> Result<v1::GetRaftStatusResponse> {
        let mut client = RaftServiceClient::new(self.channel_to("admin", id)?);
        let status = tokio::time::timeout(LOOK, client.get_raft_status(v1::GetRaftStatusRequest {})).await;
        let status = status.with_context(|| format!("broker {id} does not answer"))?;
        Ok(status.map_err(|status| anyhow!("broker {id}: {}", status.message()))?.into_inner())
    }

    async fn statuses(&self) -> Result<Vec<v1::GetRaftStatusResponse>> {
        let mut statuses = Vec::new();
        for id in MEMBERS {
            statuses.push(self.status(id).await?);
        }
        Ok(statuses)
    }

    /// Who leads, as most of those say that answer.
    pub(super) async fn leader(&self) -> Option<u64> {
        let mut leaders = Vec::new();
        for id in MEMBERS {
            leaders.extend(self.status(id).await.ok().map(|status| status.leader).filter(|leader| *leader != 0));
        }
        MEMBERS.max_by_key(|id| leaders.iter().filter(|leader| *leader == id).count()).filter(|_| !leaders.is_empty())
    }

    /// All answer, one leads, all vote, and none is far behind.
    ///
    /// # Errors
    /// What is not so.
    pub(super) async fn well(&self) -> Result<()> {
        let statuses = self.statuses().await?;
        let leaders: BTreeSet<u64> = statuses.iter().map(|status| status.leader).collect();
        ensure!(leaders.len() == 1 && !leaders.contains(&0), "leaders by broker: {leaders:?}");
        for status in &statuses {
            ensure!(status.violations.is_empty(), "broker {}: {}", status.id, status.violations.join("; "));
            let voters = status.members.iter().filter(|member| member.voter).count();
            ensure!(voters == statuses.len(), "broker {} knows {voters} voters", status.id);
        }
        let applied = || statuses.iter().map(|status| status.applied_index);
        let (least, most) = (applied().min().unwrap_or(0), applied().max().unwrap_or(0));
        ensure!(most - least <= BEHIND, "one has applied {least}, another {most}");
        Ok(())
    }

    /// All have the same state, and one says that it leads.
    ///
    /// # Errors
    /// What was not so in the end.
    pub(super) async fn converged(&self) -> Result<()> {
        until("the brokers to have the same state", RECOVERY, async || {
            self.well().await?;
            let statuses = self.statuses().await?;
            let states: BTreeSet<_> = statuses.iter().map(|status| (status.revision, &status.state_sha256)).collect();
            ensure!(states.len() == 1, "states: {states:?}");
            let leaders = statuses.iter().filter(|status| status.role == "leader").count();
            ensure!(leaders == 1, "{leaders} brokers say that they lead");
            Ok(Some(()))
        })
        .await
    }

    /// Numbers of all requests that wait, read linearizably from one broker.
    pub(super) async fn waiting_on(&self, id: u64) -> Result<BTreeSet<u64>> {
        let read = async {
            let mut client = RequestServiceClient::new(self.channel_to("alice", id)?);
            let (mut numbers, mut token) = (BTreeSet::new(), String::new());
            loop {
                let request = v1::ListRequestsRequest {
                    page: Some(v1::PageRequest { size: PAGE, token }),
                    consistency: v1::Consistency::Linearizable.into(),
                    ..v1::ListRequestsRequest::default()
                };
                let reply = client.list_requests(request).await.map_err(|status| anyhow!("{}", status.message()))?;
                let reply = reply.into_inner();
                for request in &reply.requests {
                    ensure!(numbers.insert(number_of(request)?), "{} is there twice", number_of(request)?);
                }
                token = reply.page.context("a page says where it goes on")?.next_token;
                if token.is_empty() {
                    return Ok(numbers);
                }
            }
        };
        tokio::time::timeout(READ, read).await.context("no answer")?
    }

    /// Ends a broker with SIGKILL, if it runs.
    pub(super) async fn kill(&mut self, id: u64) -> Result<()> {
        if self.federation.broker_pid(id).is_none() {
            return Ok(());
        }
        self.federation.kill_broker(id).await
    }

    pub(super) fn start_broker(&mut self, id: u64) -> Result<()> {
        self.federation.start_broker(id)
    }

    /// Brokers that have ended by themselves since they were started.
    pub(super) fn ended(&mut self) -> Result<Vec<u64>> {
        self.federation.ended_brokers()
    }

    pub(super) async fn signal(&self, id: u64, signal: &str) -> Result<()> {
        let Some(pid) = self.federation.broker_pid(id) else { bail!("broker {id} does not run") };
        Process::signal(pid, signal).await
    }

    /// Removes all that a broker keeps of the group, and nothing of who it is. It must not run.
    pub(super) fn wipe(&self, id: u64) -> Result<()> {
        Ok(std::fs::remove_dir_all(self.federation.broker_dir(id).join("group"))?)
    }

    pub(super) fn logs(&self) -> String {
        self.federation.logs()
    }

    /// The logs of a run that found something, where `COMITY_CHAOS_LOGS` says.
    pub(super) fn keep_logs(&self, good: bool) {
        let Some(kept) = std::env::var_os("COMITY_CHAOS_LOGS").filter(|_| !good) else { return };
        if let Err(error) = self.federation.copy_logs(kept.as_ref()) {
            eprintln!("the logs are not kept: {error:#}");
        }
    }
}

/// The number that a client gave a request.
pub(super) fn number_of(request: &v1::Request) -> Result<u64> {
    let purpose = &request.spec.as_ref().context("a request has a spec")?.purpose;
    purpose.parse().with_context(|| format!("request of the purpose {purpose:?}"))
}
