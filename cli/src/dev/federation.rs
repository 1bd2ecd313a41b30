//! The whole federation: brokers, policy, members.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use comity_agent::Agent;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::BrokerEndpoints;

use super::brokers::{self, Brokers};
use super::home::Home;
use super::institutions::Institutions;
use super::kubernetes_clusters::KubernetesClusters;
use super::member::{Member, NAMES};
use super::timeline::{Step, Timeline};
use crate::commands::{policy, raft};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;
use crate::session::{Session, call, idempotency_key};

/// Until a leader is elected; takes a second at most on a machine that is not overloaded.
const ELECTION_LIMIT: Duration = Duration::from_secs(20);
/// Until every cluster is connected and has advertised its devices.
const JOIN_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// A running federation.
pub(super) struct Federation {
    brokers: Brokers,
    agents: Vec<Agent>,
    /// Certificate of alice, who submits for poly-ml.
    pub(super) alice: PathBuf,
    /// Certificate of ingrid, who maintains the federation.
    pub(super) maintainer: PathBuf,
    /// Where everything lies.
    pub(super) home: PathBuf,
}

impl Federation {
    /// Starts everything, or takes down again what was started.
    pub(super) async fn start(
        home: &Home,
        clusters: Option<&KubernetesClusters>,
        timeline: &mut Timeline,
    ) -> Result<Self, Failure> {
        let institutions = Institutions::open(&home.dir("institutions"))?;
        let brokers = Brokers::start(home, &institutions.trust_domain).await?;
        let mut federation = Self {
            brokers,
            agents: Vec::new(),
            alice: PathBuf::new(),
            maintainer: brokers::maintainer_dir(home),
            home: home.path().to_owned(),
        };
        match federation.fill(home, &institutions, clusters, timeline).await {
            Ok(()) => Ok(federation),
            Err(failure) => {
                federation.stop().await;
                Err(failure)
            }
        }
    }

    async fn fill(
        &mut self,
        home: &Home,
        institutions: &Institutions,
        clusters: Option<&KubernetesClusters>,
        timeline: &mut Timeline,
    ) -> Result<(), Failure> {
        self.alice = brokers::user(home, "alice")?;
        let maintainer = self.session(&self.maintainer);
        let leader = self.elected(&maintainer).await?;
        let mut client = PolicyServiceClient::new(maintainer.channel()?);
        let applied = policy::apply(&mut client, institutions.files.clone(), None, idempotency_key(None)).await?;
        if !applied.ok {
            return Err(Failure::refused(
                "bad-policy",
                format!("the broker refuses the example policy: {:?}", applied.problems),
            ));
        }
        let documents = applied.documents;
        let detail = format!("three brokers, broker {leader} leads; policy of {documents} documents is in force");
        timeline.done(Step::BrokersReady, &detail);

        let names = clusters.map_or(&NAMES[..], KubernetesClusters::names);
        let joining = names.iter().map(|name| {
            let kubeconfig = clusters.and_then(|clusters| clusters.kubeconfig(name));
            let member = Member::new(home, name, kubeconfig, institutions);
            let maintainer = &maintainer;
            async move { joined(member?, maintainer).await }
        });
        // All of them are waited for, so that none is left running when another fails.
        let mut problem = None;
        for agent in futures::future::join_all(joining).await {
            match agent {
                Ok(agent) => self.agents.push(agent),
                Err(failure) => problem = Some(failure),
            }
        }
        if let Some(failure) = problem {
            return Err(failure);
        }
        let devices = self.advertised(&maintainer, names).await?;
        let note = if clusters.is_some() {
            "real Kubernetes API servers"
        } else {
            "an echo API stands in for their API servers"
        };
        timeline.done(Step::ClustersJoined, &format!("{}; {devices} GPUs in all; {note}", names.join(", ")));
        Ok(())
    }

    /// A session of a user of this federation.
    pub(super) fn session(&self, identity: &std::path::Path) -> Session {
        Session::to(&self.brokers.endpoints, identity, Format::Table)
    }

    /// Where the brokers are.
    pub(super) const fn endpoints(&self) -> &BrokerEndpoints {
        &self.brokers.endpoints
    }

    /// The socket of a cluster's agent.
    pub(super) fn agent_socket(&self, cluster: &str) -> Option<PathBuf> {
        self.agents.iter().find(|agent| agent.cluster() == cluster).map(|agent| agent.socket().to_owned())
    }

    /// "host:port" of a cluster's API server, or of the echo API in its place.
    pub(super) fn api_address(&self, cluster: &str) -> Option<String> {
        let target = self.agents.iter().find(|agent| agent.cluster() == cluster)?.api_target();
        let (host, port) = target.address();
        Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
    }

    /// Stops everything.
    pub(super) async fn stop(self) {
        futures::future::join_all(self.agents.into_iter().map(Agent::shutdown)).await;
        self.brokers.stop().await;
    }

    async fn elected(&self, session: &Session) -> Result<u64, Failure> {
        let tls = session.tls()?;
        let began = Instant::now();
        loop {
            let last = match raft::status(self.endpoints(), &tls).await {
                Ok(status) if status.leader != 0 => return Ok(status.leader),
                Ok(_) => "no leader is known".to_owned(),
                Err(failure) => failure.reason,
            };
            if began.elapsed() > ELECTION_LIMIT {
                return Err(Failure::unavailable(format!(
                    "the brokers have no leader after {ELECTION_LIMIT:?}: {last}"
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until the brokers hear every cluster and know its devices; how many devices there are.
    async fn advertised(&self, session: &Session, names: &[&str]) -> Result<u32, Failure> {
        let mut client = FederationServiceClient::new(session.channel()?);
        let began = Instant::now();
        loop {
            let request = v1::ListClustersRequest { page: None, consistency: session.consistency() };
            let clusters = call(client.list_clusters(request)).await?.clusters;
            let there = |name: &str| clusters.iter().any(|c| c.id == name && c.connected && c.offer_generation > 0);
            if names.iter().all(|name| there(name)) {
                return Ok(clusters.iter().map(|cluster| cluster.devices).sum());
            }
            if began.elapsed() > JOIN_LIMIT {
                let missing: Vec<_> = names.iter().filter(|name| !there(name)).copied().collect();
                return Err(Failure::unavailable(format!(
                    "not connected after {JOIN_LIMIT:?}: {}",
                    missing.join(", ")
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Invites a member, unless it joined in an earlier run, and starts its agent.
async fn joined(mut member: Member, maintainer: &Session) -> Result<Agent, Failure> {
    if !member.has_joined() {
        let mut client = FederationServiceClient::new(maintainer.channel()?);
        let request = v1::InviteClusterRequest {
            cluster: member.cluster().to_owned(),
            ttl_ms: 0,
            idempotency_key: idempotency_key(None),
            // The run before may have ended between the two halves of joining.
            replace: true,
        };
        let invited = call(client.invite_cluster(request)).await?;
        member.invite(&invited.token)?;
    }
    let cluster = member.cluster();
    let agent = member.start().await?;
    match tokio::time::timeout(JOIN_LIMIT, agent.connected()).await {
        Ok(()) => Ok(agent),
        Err(_) => {
            agent.shutdown().await;
            Err(Failure::new(
                Exit::Unavailable,
                "timeout",
                format!("{cluster} has no stream to a broker after {JOIN_LIMIT:?}"),
            ))
        }
    }
}
