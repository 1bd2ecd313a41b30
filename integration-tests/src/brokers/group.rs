//! The brokers of the chaos test, and queries of their state.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use comity_proto::v1;
use comity_proto::v1::change_members_request::Change;
use comity_proto::v1::raft_service_client::RaftServiceClient;
use comity_runtime::{BrokerChannel, BrokerEndpoints};

use super::broker_faults::REPLACEMENT;
use super::host::{Hosts, SEATS};
use crate::comity::Comity;
use crate::federation::broker_api::user_channel;
use crate::federation::{Federation, FederationConfig, Ports};
use crate::process::Process;
use crate::process::place::Place;
use crate::stores::numbered_requests::{join_origin, list_numbers, tenant};
use crate::stores::store_policy::write_policy;
use crate::wait::until;

/// Entries between two snapshots: few, so that a lagging member needs one.
const SNAPSHOT_EVERY: u64 = 2_000;
/// Timeout of one status query.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of reading all requests from one broker.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The group must be healthy again within this time after a fault.
pub(super) const GROUP_RECOVERY_TIMEOUT: Duration = Duration::from_secs(90);
/// Timeout of one member change, which includes a copy of the log.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Entries by which a healthy broker may lag.
const MAX_LAG: u64 = 200;

/// Tenant of temporary requests; all its queued requests fit into one page.
pub(super) fn temporary_tenant() -> String {
    tenant(0)
}

/// Tenant of requests that stay queued.
pub(super) fn permanent_tenant() -> String {
    tenant(1)
}

/// Three members, each on its own host.
pub(super) struct Group {
    federation: Federation,
    pub(super) hosts: Hosts,
    /// The number of the member on each seat.
    members: BTreeMap<u64, u64>,
    /// Ports of each seat for its next member; the current member has the other ones.
    spare: BTreeMap<u64, Ports>,
    /// The highest broker number in use so far.
    newest: u64,
    /// Addresses for clients, with all ports that members may have.
    addresses: Vec<String>,
    /// Whether the refusal of a removed broker was observed.
    saw_refusal: bool,
    _policy: tempfile::TempDir,
}

/// A broker that replaces the member on a seat.
#[derive(Clone, Debug)]
pub(super) struct Successor {
    pub(super) seat: u64,
    /// Numbers of the replaced and of the new broker.
    pub(super) old: u64,
    pub(super) new: u64,
    raft_address: String,
    client_address: String,
}

impl Successor {
    /// The member changes of a replacement, in the order of `comity raft replace`.
    pub(super) fn changes(&self) -> [Change; REPLACEMENT] {
        let (raft_address, client_address) = (self.raft_address.clone(), self.client_address.clone());
        [
            Change::AddLearner(v1::AddLearner { id: self.new, raft_address, client_address }),
            Change::Promote(v1::Promote { id: self.new }),
            Change::Remove(v1::Remove { id: self.old }),
        ]
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Before the directories under which they are mounted are removed.
        self.hosts.unmount();
    }
}

impl Group {
    /// Starts the group.
    ///
    /// # Errors
    /// When it does not become healthy.
    pub(super) async fn start() -> Result<Self> {
        let policy = tempfile::tempdir()?;
        write_policy(policy.path())?;
        let mut hosts = Hosts::make().await?;
        let config = FederationConfig {
            brokers: *SEATS.end(),
            policy: policy.path().to_owned(),
            place: Place::here(),
            snapshot_every: SNAPSHOT_EVERY,
            cluster_certificates_s: 86_400,
            hosts: Vec::new(),
            ca: None,
        };
        let places = hosts.places();
        let federation = Federation::start_at(config, places, |seat, data| hosts.mount(seat, &data)).await?;
        let (mut spare, mut addresses) = (BTreeMap::new(), federation.broker_addresses());
        for seat in SEATS {
            let ports = Ports::free()?;
            addresses.push(ports.addresses(&hosts.place(seat)?).1);
            spare.insert(seat, ports);
        }
        let members = SEATS.map(|seat| (seat, seat)).collect();
        let (newest, saw_refusal) = (*SEATS.end(), false);
        let group = Self { federation, hosts, members, spare, newest, addresses, saw_refusal, _policy: policy };
        join_origin(group.channel_from("admin", 0)?).await?;
        until("the group to be healthy", GROUP_RECOVERY_TIMEOUT, async || group.check_healthy().await.map(Some))
            .await?;
        Ok(group)
    }

    /// A channel to all brokers, beginning with one of them.
    pub(super) fn channel_from(&self, user: &str, first: usize) -> Result<BrokerChannel> {
        let brokers = BrokerEndpoints::new(&self.addresses)?;
        user_channel(self.federation.dir(), user, &brokers.starting_at(first))
    }

    /// A channel to one broker alone.
    pub(super) fn channel_to(&self, user: &str, broker: u64) -> Result<BrokerChannel> {
        user_channel(self.federation.dir(), user, &BrokerEndpoints::new([self.federation.broker_address(broker)?])?)
    }

    /// The number of the member on a seat.
    pub(super) fn member(&self, seat: u64) -> Result<u64> {
        self.members.get(&seat).copied().context("seats are 1 to 3")
    }

    fn seat_of(&self, broker: u64) -> Option<u64> {
        self.members.iter().find(|(_, member)| **member == broker).map(|(seat, _)| *seat)
    }

    async fn status(&self, id: u64) -> Result<v1::GetRaftStatusResponse> {
        let mut client = RaftServiceClient::new(self.channel_to("admin", id)?);
        let status = tokio::time::timeout(STATUS_TIMEOUT, client.get_raft_status(v1::GetRaftStatusRequest {})).await;
        let status = status.with_context(|| format!("broker {id} does not answer"))?;
        Ok(status.map_err(|status| anyhow!("broker {id}: {}", status.message()))?.into_inner())
    }

    async fn statuses(&self) -> Result<Vec<v1::GetRaftStatusResponse>> {
        let mut statuses = Vec::new();
        for broker in self.members.values() {
            statuses.push(self.status(*broker).await?);
        }
        Ok(statuses)
    }

    /// Seat of the leader, by majority of the brokers that answer.
    pub(super) async fn leader(&self) -> Option<u64> {
        let mut leaders = Vec::new();
        for broker in self.members.values() {
            let leader = self.status(*broker).await.ok().map(|status| status.leader);
            leaders.extend(leader.and_then(|leader| self.seat_of(leader)));
        }
        SEATS.max_by_key(|seat| leaders.iter().filter(|leader| *leader == seat).count()).filter(|_| !leaders.is_empty())
    }

    /// Checks that all brokers answer, agree on leader and members, vote, and do not lag.
    ///
    /// # Errors
    /// Names the failed check.
    pub(super) async fn check_healthy(&self) -> Result<()> {
        let statuses = self.statuses().await?;
        let leaders: BTreeSet<u64> = statuses.iter().map(|status| status.leader).collect();
        ensure!(leaders.len() == 1 && !leaders.contains(&0), "leaders by broker: {leaders:?}");
        for status in &statuses {
            ensure!(status.violations.is_empty(), "broker {}: {}", status.id, status.violations.join("; "));
            let known: BTreeMap<u64, bool> = status.members.iter().map(|member| (member.id, member.voter)).collect();
            let right = self.members.values().map(|member| (*member, true)).collect();
            ensure!(known == right, "broker {} knows the members {known:?}, true: votes", status.id);
        }
        let applied = || statuses.iter().map(|status| status.applied_index);
        let (least, most) = (applied().min().unwrap_or(0), applied().max().unwrap_or(0));
        ensure!(most - least <= MAX_LAG, "one has applied {least}, another {most}");
        Ok(())
    }

    /// Waits until all brokers have the same state and exactly one claims to lead.
    ///
    /// # Errors
    /// Names the check that failed last.
    pub(super) async fn await_convergence(&self) -> Result<()> {
        until("the brokers to have the same state", GROUP_RECOVERY_TIMEOUT, async || {
            self.check_healthy().await?;
            let statuses = self.statuses().await?;
            let states: BTreeSet<_> = statuses.iter().map(|status| (status.revision, &status.state_sha256)).collect();
            ensure!(states.len() == 1, "states: {states:?}");
            let leaders = statuses.iter().filter(|status| status.role == "leader").count();
            ensure!(leaders == 1, "{leaders} brokers say that they lead");
            Ok(Some(()))
        })
        .await
    }

    /// Numbers of all queued requests, read linearizably from the member on one seat.
    pub(super) async fn queued_on(&self, seat: u64) -> Result<BTreeSet<u64>> {
        let channel = self.channel_to("alice", self.member(seat)?)?;
        let queued = v1::ListRequestsRequest::default();
        let read = list_numbers(channel, &queued);
        tokio::time::timeout(READ_TIMEOUT, read).await.context("no answer")?
    }

    /// Kills the member on a seat with SIGKILL, if it runs.
    pub(super) async fn kill(&mut self, seat: u64) -> Result<()> {
        self.kill_broker(self.member(seat)?).await
    }

    /// Starts the stopped member on a seat.
    pub(super) fn start_on(&mut self, seat: u64) -> Result<()> {
        self.start_broker(self.member(seat)?)
    }

    /// As [`Group::kill`], by the broker's number.
    pub(super) async fn kill_broker(&mut self, broker: u64) -> Result<()> {
        if self.federation.broker_pid(broker).is_none() {
            return Ok(());
        }
        self.federation.kill_broker(broker).await
    }

    pub(super) fn start_broker(&mut self, broker: u64) -> Result<()> {
        self.federation.start_broker(broker)
    }

    /// Brokers that have ended by themselves since they were started, by their numbers.
    pub(super) fn ended(&mut self) -> Result<Vec<u64>> {
        self.federation.ended_brokers()
    }

    /// The last line that a broker logged.
    pub(super) fn last_log_line(&self, broker: u64) -> String {
        let log = self.federation.log_of(&format!("broker-{broker}"));
        log.map_or_else(|error| format!("{error:#}"), |log| log.lines().last().unwrap_or("no log").to_owned())
    }

    pub(super) async fn signal(&self, seat: u64, signal: &str) -> Result<()> {
        let broker = self.member(seat)?;
        let Some(pid) = self.federation.broker_pid(broker) else { bail!("broker {broker} does not run") };
        Process::signal(pid, signal).await
    }

    /// Removes the stored state of the stopped member on a seat, and keeps its identity.
    pub(super) fn wipe(&self, seat: u64) -> Result<()> {
        Ok(std::fs::remove_dir_all(self.federation.broker_dir(self.member(seat)?).join("group"))?)
    }

    /// Creates and starts a broker with a new number on the host of a member to replace. It is not a member yet.
    pub(super) async fn seat_successor(&mut self, seat: u64) -> Result<Successor> {
        let (old, new) = (self.member(seat)?, self.newest + 1);
        let ports = self.spare.remove(&seat).context("a member of this seat is being replaced")?;
        let data = self.federation.broker_dir(old).with_file_name(format!("broker-{new}"));
        let (raft_address, client_address) = self.federation.add_broker_at(new, self.hosts.place(seat)?, data, ports);
        self.newest = new;
        self.federation.add_identity(old, new).await?;
        self.start_broker(new)?;
        Ok(Successor { seat, old, new, raft_address, client_address })
    }

    /// Requests one member or leader change from any broker that answers.
    ///
    /// # Errors
    /// When it is refused or takes too long; repeating it is safe.
    pub(super) async fn change(channel: BrokerChannel, change: Change) -> Result<()> {
        let mut client = RaftServiceClient::new(channel);
        let request = v1::ChangeMembersRequest { change: Some(change) };
        let changed = tokio::time::timeout(CHANGE_TIMEOUT, client.change_members(request)).await;
        changed.context("no answer")?.map_err(|status| anyhow!("{}", status.message()))?;
        Ok(())
    }

    /// Stops the replaced member. For the first one of a run, also checks that the group refuses it although its
    /// certificate is valid.
    ///
    /// # Errors
    /// When the group accepts it.
    pub(super) async fn retire(&mut self, successor: &Successor) -> Result<()> {
        let old = successor.old;
        self.members.insert(successor.seat, successor.new);
        self.kill_broker(old).await?;
        if !self.saw_refusal {
            self.start_broker(old)?;
            until("the replaced broker to be refused", GROUP_RECOVERY_TIMEOUT, async || {
                Ok(self.ended()?.contains(&old).then_some(()))
            })
            .await?;
            let log = self.federation.log_of(&format!("broker-{old}"))?;
            ensure!(log.contains("was removed from its group"), "it ended for another reason:\n{}", self.logs());
            self.saw_refusal = true;
        }
        let data = self.federation.broker_dir(old);
        let ports = self.federation.forget_broker(old).await?;
        self.spare.insert(successor.seat, ports);
        Ok(std::fs::remove_dir_all(data)?)
    }

    /// The command of a user whose list of brokers begins with the member on a seat.
    pub(super) fn command_from(&self, seat: u64) -> Result<Comity> {
        let first = self.federation.broker_address(self.member(seat)?)?;
        let others = self.addresses.iter().filter(|address| **address != first).cloned();
        Ok(self.federation.command_at(&[vec![first.clone()], others.collect()].concat()))
    }

    /// As [`Group::channel_from`], beginning with the member on a seat.
    pub(super) fn channel_from_seat(&self, user: &str, seat: u64) -> Result<BrokerChannel> {
        let first = self.federation.broker_address(self.member(seat)?)?;
        let place = self.addresses.iter().position(|address| *address == first);
        self.channel_from(user, place.context("clients know all addresses")?)
    }

    /// Whether the metrics of the member on a seat report that it leads.
    pub(super) async fn claims_to_lead(&self, seat: u64) -> Result<bool> {
        let metrics = self.federation.broker_metrics(self.member(seat)?).await?;
        let line = metrics.lines().find_map(|line| line.strip_prefix("comity_broker_leader "));
        Ok(line.context("there is a metric comity_broker_leader")?.trim() == "1")
    }

    /// All that the member on a seat has logged.
    pub(super) fn log_on(&self, seat: u64) -> Result<String> {
        self.federation.log_of(&format!("broker-{}", self.member(seat)?))
    }

    pub(super) fn logs(&self) -> String {
        self.federation.logs()
    }

    /// Keeps the logs of a run with violations.
    pub(super) fn keep_logs(&self) {
        self.federation.keep_logs();
    }
}
