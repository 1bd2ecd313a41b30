//! Whole agents against a broker in this process.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../../tests/join/federation.rs"]
mod federation;

use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_broker::group::{Consistency, Proposal};
use comity_core::Command;
use comity_core::command::AdvertiseOffer;
use comity_core::inventory::Offer;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::SecretString;
use comity_types::ClusterId;

use federation::Federation;

use super::*;
use crate::config::FabricSettings;
use crate::enrollment::token_source::JoinTokenSource;

const MAX_WAIT: Duration = Duration::from_secs(30);
const CLUSTER: &str = "ncc-main";

impl Federation {
    fn state(&self) -> PathBuf {
        self.home.path().join("state")
    }

    /// Writes the inventory of a host with this number of GPUs.
    fn write_inventory(&self, gpus: usize) -> PathBuf {
        let file = self.home.path().join("inventory.yaml");
        let text = format!(
            "nodes:\n  - name: titan\n    cpu: \"32\"\n    memory: 128Gi\n    gpus:\n      - {{count: {gpus}, product: \
             NVIDIA-RTX-4090, memoryMiB: 24564, architecture: ada-lovelace, computeCapability: \"8.9\", driverVersion: \
             \"550.1\"}}\n"
        );
        std::fs::write(&file, text).unwrap();
        file
    }

    fn config(&self, token: Option<String>) -> Config {
        comity_runtime::atomic_file::create_private_dir(&self.state()).unwrap();
        let loopback = "127.0.0.1:0".parse().unwrap();
        Config {
            state_dir: self.state(),
            inventory_file: Some(self.write_inventory(2)),
            join_token_file: token.map(|token| JoinTokenSource::Inline(SecretString::new(token))),
            fabric: FabricSettings { listen: loopback, ..FabricSettings::default() },
            admin_listen: loopback,
            ..Config::default()
        }
    }

    /// Joins as [`CLUSTER`], and waits for the first desired state.
    async fn join(&self) -> Agent {
        let token = self.invite(CLUSTER).await;
        let agent = Agent::start(self.config(Some(token))).await.unwrap();
        tokio::time::timeout(MAX_WAIT, agent.connected()).await.unwrap();
        agent
    }

    /// Waits for an offer of the cluster.
    async fn offer(&self, wanted: impl Fn(&Offer) -> bool) -> Offer {
        let cluster = ClusterId::parse(CLUSTER, "cluster").unwrap();
        let look = async {
            loop {
                let of_cluster = |state: &comity_core::State| state.clusters.get(&cluster)?.offer.as_deref().cloned();
                let offer = self.broker.group().read(Consistency::Stale, of_cluster).await.unwrap();
                if let Some(offer) = offer.filter(&wanted) {
                    return offer;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(MAX_WAIT, look).await.expect("the offer comes")
    }

    async fn stop(self, agent: Agent) {
        agent.shutdown().await;
        self.broker.shutdown().await;
    }
}

/// Opens the store of an agent that was shut down, once the agent's last task has closed it.
async fn opened(state: &Path) -> Store {
    let open = async {
        loop {
            match Store::open(state) {
                Ok(store) => return store,
                Err(StoreError::Database { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(MAX_WAIT, open).await.expect("the agent closes its store")
}

fn gpus(offer: &Offer) -> usize {
    offer.nodes.values().map(|node| node.devices.len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_behind_one_that_somebody_else_made_is_made_again() {
    let federation = Federation::start().await;
    let agent = federation.join().await;
    let own = federation.offer(|offer| gpus(offer) == 2).await;
    // As if somebody else used its certificate on another stream: this agent hears nothing of it.
    let generation = own.generation + 1_000;
    let forged =
        AdvertiseOffer { cluster: ClusterId::parse(CLUSTER, "cluster").unwrap(), offer: Offer { generation, ..own } };
    let forged = Proposal::of_leader(1, Command::AdvertiseOffer(forged));
    federation.broker.group().propose(forged).await.unwrap().reply.unwrap();
    federation.write_inventory(3);
    let next = federation.offer(|offer| gpus(offer) == 3).await;
    assert!(next.generation > generation, "{} is not above {generation}", next.generation);
    federation.stop(agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_another_cluster_keep_an_agent_from_starting() {
    let federation = Federation::start().await;
    federation.join().await.shutdown().await;
    let own = opened(&federation.state()).await;
    let owner = own.check_owner("spiffe://comity.example/cluster/startup-pc").unwrap_err().to_string();
    assert!(owner.contains("cluster/ncc-main"), "the start bound them: {owner}");
    drop(own);

    std::fs::remove_file(federation.state().join("agent.redb")).unwrap();
    let other = Store::open(&federation.state()).unwrap();
    other.bind("spiffe://comity.example/cluster/startup-pc").await.unwrap();
    drop(other);
    let refused = Agent::start(federation.config(None)).await.err().expect("its records are another cluster's");
    assert!(matches!(&refused, AgentError::Store(StoreError::OtherOwner { .. })), "{refused:?}");
    assert!(refused.to_string().contains("cluster/startup-pc"), "{refused}");
    federation.broker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_knows_that_it_takes_no_part_while_its_institution_is_suspended() {
    let federation = Federation::start().await;
    let agent = federation.join().await;
    let mut revoked = agent.parts.revoked.subscribe();
    assert!(!*revoked.borrow());
    let institution = "national-centre".to_owned();
    let suspend = v1::SuspendInstitutionRequest {
        institution: institution.clone(),
        idempotency_key: "suspend".to_owned(),
        ..v1::SuspendInstitutionRequest::default()
    };
    let mut admin = FederationServiceClient::new(federation.admin());
    admin.suspend_institution(suspend).await.unwrap();
    tokio::time::timeout(MAX_WAIT, revoked.wait_for(|revoked| *revoked)).await.expect("it is told").unwrap();
    assert!(!agent.is_connected());
    let resume = v1::ResumeInstitutionRequest { institution, idempotency_key: "resume".to_owned() };
    admin.resume_institution(resume).await.unwrap();
    tokio::time::timeout(MAX_WAIT, revoked.wait_for(|revoked| !*revoked)).await.expect("it takes part again").unwrap();
    federation.stop(agent).await;
}
