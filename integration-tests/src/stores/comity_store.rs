//! Comity's broker group as a store: a write is an accepted, queued request.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use comity_proto::v1;
use comity_proto::v1::raft_service_client::RaftServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::{BrokerChannel, BrokerEndpoints};

use super::numbered_requests::{join_origin, list_numbers, request};
use super::store_policy::{WRITERS, write_policy, writer};
use super::{Client, LEADER_TIMEOUT, MEMBERS, Store};
use crate::federation::broker_api::user_channel;
use crate::federation::{Federation, FederationConfig};
use crate::process::place::Place;
use crate::programs::{run, utf8};
use crate::wait::{PATIENCE, until};

/// Three brokers.
pub(crate) struct ComityStore {
    federation: Federation,
    brokers: BrokerEndpoints,
    /// Clients so far; each has a connection of its own, and they take turns as users.
    clients: AtomicUsize,
    _policy: tempfile::TempDir,
}

impl ComityStore {
    /// Starts the group with the default snapshot and log settings.
    ///
    /// # Errors
    /// When it does not start.
    pub(crate) async fn start() -> Result<Self> {
        let policy = tempfile::tempdir()?;
        write_policy(policy.path())?;
        let federation = Federation::start(FederationConfig {
            brokers: MEMBERS as u64,
            policy: policy.path().to_owned(),
            place: Place::here(),
            snapshot_every: 10_000,
            cluster_certificates_s: 86_400,
            hosts: Vec::new(),
            ca: None,
        })
        .await?;
        let brokers = BrokerEndpoints::new(federation.broker_addresses())?;
        for user in (0..WRITERS).map(writer) {
            let (data, out) = (federation.broker_dir(1), crate::comity::identity(federation.dir(), &user));
            run("comity-broker", &["issue-user", "--data", utf8(&data)?, "--name", &user, "--out", utf8(&out)?])
                .await?;
        }
        let store = Self { federation, brokers, clients: AtomicUsize::new(0), _policy: policy };
        join_origin(store.channel("admin", &store.brokers)?).await?;
        Ok(store)
    }

    fn channel(&self, user: &str, brokers: &BrokerEndpoints) -> Result<BrokerChannel> {
        user_channel(self.federation.dir(), user, brokers)
    }

    /// A client of its own connection, as the next user.
    fn submitter(&self, brokers: &BrokerEndpoints) -> Result<Submitter> {
        let number = self.clients.fetch_add(1, Ordering::Relaxed) % WRITERS;
        Ok(Submitter(self.channel(&writer(number), brokers)?))
    }

    fn alone(&self, member: usize) -> Result<BrokerEndpoints> {
        Ok(BrokerEndpoints::new([self.brokers.addresses().get(member).context("members are 0 to 2")?])?)
    }

    /// The leader that a member knows after a linearizable read; 0 for none.
    async fn leader_by(&self, member: usize) -> Result<u64> {
        let brokers = self.alone(member)?;
        let look = async {
            let mut raft = RaftServiceClient::new(self.channel("admin", &brokers)?);
            let status = raft.get_raft_status(v1::GetRaftStatusRequest {}).await?.into_inner();
            let page = Some(v1::PageRequest { size: 1, token: String::new() });
            let consistency = v1::Consistency::Linearizable.into();
            let list = v1::ListRequestsRequest { page, consistency, ..v1::ListRequestsRequest::default() };
            RequestServiceClient::new(self.channel("alice", &brokers)?).list_requests(list).await?;
            anyhow::Ok(status.leader)
        };
        tokio::time::timeout(LEADER_TIMEOUT, look).await.context("no answer")?
    }
}

impl Store for ComityStore {
    type Client = Submitter;
    const NAME: &'static str = "comity";

    fn client(&self, first: usize) -> Result<Submitter> {
        self.submitter(&self.brokers.clone().starting_at(first))
    }

    fn client_of(&self, member: usize) -> Result<Submitter> {
        self.submitter(&self.alone(member)?)
    }

    async fn leader(&self) -> Result<usize> {
        until("three brokers that agree who leads", PATIENCE, async || {
            let mut leaders = HashSet::new();
            for member in 0..MEMBERS {
                leaders.insert(self.leader_by(member).await?);
            }
            ensure!(leaders.len() == 1 && !leaders.contains(&0), "leaders: {leaders:?}");
            let number = leaders.into_iter().next().context("a leader")?;
            Ok(Some(usize::try_from(number)? - 1))
        })
        .await
    }

    async fn kill(&mut self, member: usize) -> Result<()> {
        self.federation.kill_broker(member as u64 + 1).await
    }

    fn restart(&mut self, member: usize) -> Result<()> {
        self.federation.start_broker(member as u64 + 1)
    }

    async fn read_all(&self, member: usize) -> Result<BTreeSet<u64>> {
        let all = v1::ListRequestsRequest { include_ended: true, ..v1::ListRequestsRequest::default() };
        list_numbers(self.channel("alice", &self.alone(member)?)?, &all).await
    }

    fn pids(&self) -> Vec<u32> {
        self.federation.broker_pids()
    }

    fn logs(&self) -> String {
        self.federation.logs()
    }
}

/// A user who submits.
#[derive(Clone)]
pub(crate) struct Submitter(BrokerChannel);

impl Client for Submitter {
    async fn write(&self, number: u64, limit: Duration) -> Result<()> {
        let mut client = RequestServiceClient::new(self.0.clone());
        tokio::time::timeout(limit, client.submit_request(request(number))).await.context("no answer")??;
        Ok(())
    }
}
