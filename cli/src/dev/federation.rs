//! Starts and stops the whole federation: brokers, policy, member clusters.

use std::collections::BTreeSet;
use std::path::PathBuf;

use comity_agent::Agent;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::BrokerEndpoints;

use super::alice::{self, ALICE};
use super::brokers::{self, Brokers};
use super::home::Home;
use super::institutions::Institutions;
use super::inventories::NAMES;
use super::kubernetes_clusters::KubernetesClusters;
use super::member::Member;
use super::patience::{STEP_LIMIT, patiently};
use super::timeline::{Step, Timeline};
use crate::commands::{policy, raft};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;
use crate::session::{Session, call, idempotency_key};

/// A running federation.
pub(super) struct Federation {
    brokers: Brokers,
    agents: Vec<Agent>,
    /// Identity directory of alice, who submits requests for the tenant poly-ml.
    pub(super) alice: PathBuf,
    /// Identity directory of ingrid, a maintainer of the federation.
    pub(super) maintainer: PathBuf,
    /// Directory of all state.
    pub(super) home: PathBuf,
}

impl Federation {
    /// Starts everything; stops what was started if a step fails.
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
            maintainer: PathBuf::new(),
            home: home.path().to_owned(),
        };
        match federation.start_members(home, &institutions, clusters, timeline).await {
            Ok(()) => Ok(federation),
            Err(failure) => {
                federation.stop().await;
                Err(failure)
            }
        }
    }

    /// Waits for a leader, applies the example policy and starts the member clusters.
    async fn start_members(
        &mut self,
        home: &Home,
        institutions: &Institutions,
        clusters: Option<&KubernetesClusters>,
        timeline: &mut Timeline,
    ) -> Result<(), Failure> {
        self.alice = brokers::issue_user(home, ALICE)?;
        self.maintainer = brokers::issue_user(home, brokers::MAINTAINER)?;
        let maintainer = self.session(&self.maintainer);
        let leader = self.wait_for_leader(&maintainer, timeline).await.map_err(alice::advise_another_state)?;
        let mut client = PolicyServiceClient::new(maintainer.channel()?);
        let bundle = policy::BundleToApply {
            files: institutions.files.clone(),
            commit: None,
            force: false,
            expected_hash: None,
        };
        let key = idempotency_key(None);
        let applied =
            patiently(timeline, "the policy", async || policy::apply(&mut client, bundle.clone(), key.clone()).await);
        let applied = applied.await.map_err(alice::advise_another_state)?;
        if !applied.ok {
            return Err(Failure::refused(
                "bad-policy",
                format!("the broker rejects the example policy: {:?}", applied.problems),
            ));
        }
        let documents = applied.documents;
        let detail = format!("three brokers, broker {leader} leads; policy of {documents} documents is in force");
        timeline.complete(Step::BrokersReady, &detail);
        let names = clusters.map_or(&NAMES[..], KubernetesClusters::names);
        let known = known_clusters(&maintainer, timeline).await?;
        // First: without her institution, alice has no call that gets through.
        resume(&suspended(&known, names), &maintainer, timeline).await?;
        alice::let_in_again(|| self.session(&self.alice), &maintainer, timeline).await?;

        let evicted = evicted(&known, names);
        for name in &evicted {
            timeline.note(&format!("{name} was evicted in an earlier run: it joins again"));
        }
        let joining = names.iter().map(|name| {
            let kubeconfig = clusters.and_then(|clusters| clusters.kubeconfig(name));
            let member = Member::new(home, name, kubeconfig, institutions);
            let (maintainer, timeline, is_evicted) = (&maintainer, &*timeline, evicted.contains(name));
            async move { join(member?, is_evicted, maintainer, timeline).await }
        });
        // Wait for all agents, so that a failure of one leaves no other running.
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
        let devices = wait_for_offers(&maintainer, names, timeline).await?;
        let note = if clusters.is_some() { "real Kubernetes API servers" } else { "hosts without Kubernetes" };
        timeline.complete(Step::ClustersJoined, &format!("{}; {devices} GPUs in all; {note}", names.join(", ")));
        Ok(())
    }

    /// A session with the caller's certificate in `identity`.
    pub(super) fn session(&self, identity: &std::path::Path) -> Session {
        Session::for_federation(&self.brokers.endpoints, identity, Format::Table)
    }

    /// Addresses of the brokers.
    pub(super) const fn endpoints(&self) -> &BrokerEndpoints {
        &self.brokers.endpoints
    }

    /// Socket of the local API of a cluster's agent.
    pub(super) fn agent_socket(&self, cluster: &str) -> Option<PathBuf> {
        self.agents.iter().find(|agent| agent.cluster() == cluster).map(|agent| agent.socket().to_owned())
    }

    /// "host:port" of a cluster's API server, or of the API of a host without Kubernetes.
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

    /// Waits until the brokers have a leader; returns its number.
    async fn wait_for_leader(&self, session: &Session, timeline: &Timeline) -> Result<u64, Failure> {
        let tls = session.tls()?;
        patiently(timeline, "an election", async || match raft::broker_status(self.endpoints(), &tls).await {
            Ok(status) if status.leader == 0 => Err(Failure::unavailable("no leader is known")),
            Ok(status) => Ok(status.leader),
            Err(failure) if failure.code == alice::REVOKED => Err(failure),
            Err(failure) => Err(Failure::unavailable(failure.reason)),
        })
        .await
    }
}

/// Waits until every cluster is connected and has an offer; returns the number of devices.
async fn wait_for_offers(session: &Session, names: &[&str], timeline: &Timeline) -> Result<u32, Failure> {
    let mut client = FederationServiceClient::new(session.channel()?);
    patiently(timeline, "the connection of all clusters", async || {
        let request = v1::ListClustersRequest { page: None, consistency: session.consistency() };
        let clusters = call(client.list_clusters(request)).await?.clusters;
        let has_offer = |name: &str| clusters.iter().any(|c| c.id == name && c.connected && c.offer_generation > 0);
        let missing: Vec<_> = names.iter().filter(|name| !has_offer(name)).copied().collect();
        if missing.is_empty() {
            return Ok(clusters.iter().map(|cluster| cluster.devices).sum());
        }
        Err(Failure::unavailable(format!("without an offer: {}", missing.join(", "))))
    })
    .await
}

/// All clusters that joined in earlier runs.
async fn known_clusters(session: &Session, timeline: &Timeline) -> Result<Vec<v1::Cluster>, Failure> {
    let mut client = FederationServiceClient::new(session.channel()?);
    let asked = patiently(timeline, "the list of clusters", async || {
        let request = v1::ListClustersRequest { page: None, consistency: session.consistency() };
        call(client.list_clusters(request)).await
    });
    Ok(asked.await?.clusters)
}

/// Those among `names` that were evicted in an earlier run; a maintainer may invite them again.
fn evicted<'n>(known: &[v1::Cluster], names: &[&'n str]) -> BTreeSet<&'n str> {
    let evicted = known.iter().filter(|cluster| cluster.evicted_at_ms > 0);
    evicted.filter_map(|cluster| names.iter().copied().find(|name| *name == cluster.id)).collect()
}

/// The institutions of clusters among `names` that were suspended in an earlier run.
fn suspended<'c>(known: &'c [v1::Cluster], names: &[&str]) -> BTreeSet<&'c str> {
    let needed = known.iter().filter(|cluster| names.contains(&cluster.id.as_str()));
    needed.filter(|cluster| cluster.suspended_at_ms > 0).map(|cluster| cluster.institution.as_str()).collect()
}

/// Lifts suspensions of an earlier run, because the demonstration needs every cluster and no broker runs without it.
async fn resume(institutions: &BTreeSet<&str>, maintainer: &Session, timeline: &Timeline) -> Result<(), Failure> {
    for institution in institutions {
        let mut client = FederationServiceClient::new(maintainer.channel()?);
        let request = v1::ResumeInstitutionRequest {
            institution: (*institution).to_owned(),
            idempotency_key: idempotency_key(None),
        };
        let resumed =
            patiently(timeline, "the resumption", async || call(client.resume_institution(request.clone())).await);
        resumed.await?;
        timeline.note(&format!("institution {institution} was suspended in an earlier run: it is resumed"));
    }
    Ok(())
}

/// Starts a member's agent. Invites it first if it has not joined in an earlier run, or was evicted since.
async fn join(
    mut member: Member,
    is_evicted: bool,
    maintainer: &Session,
    timeline: &Timeline,
) -> Result<Agent, Failure> {
    if is_evicted || !member.has_joined() {
        let mut client = FederationServiceClient::new(maintainer.channel()?);
        let request = v1::InviteClusterRequest {
            cluster: member.cluster().to_owned(),
            ttl_ms: 0,
            idempotency_key: idempotency_key(None),
            // An earlier run may have stopped in the middle of joining.
            replace: true,
        };
        let invited =
            patiently(timeline, "an invitation", async || call(client.invite_cluster(request.clone())).await).await?;
        member.set_join_token(&invited.token)?;
    }
    let cluster = member.cluster();
    let agent = member.start().await?;
    match tokio::time::timeout(STEP_LIMIT, agent.connected()).await {
        Ok(()) => Ok(agent),
        Err(_) => {
            agent.shutdown().await;
            Err(Failure::new(
                Exit::Unavailable,
                "timeout",
                format!("{cluster} has no stream to a broker after {STEP_LIMIT:?}"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicted_clusters_join_again_and_suspended_institutions_are_resumed() {
        let cluster = |id: &str, evicted_at_ms, suspended_at_ms| v1::Cluster {
            id: id.to_owned(),
            institution: format!("owner-of-{id}"),
            evicted_at_ms,
            suspended_at_ms,
            ..v1::Cluster::default()
        };
        let names = ["ncc-main", "startup-pc"];
        let known = [cluster("ncc-main", 0, 7), cluster("startup-pc", 7, 0), cluster("other", 7, 7)];
        assert_eq!(evicted(&known, &names), BTreeSet::from(["startup-pc"]));
        assert_eq!(suspended(&known, &names), BTreeSet::from(["owner-of-ncc-main"]));
    }
}
