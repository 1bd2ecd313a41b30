//! A broker in this process, with the example policy, for tests of agents. Unit tests of `app` use it too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use comity_broker::config::{Config, Settings};
use comity_broker::group::MemberAddress;
use comity_broker::provision::{self, Init};
use comity_broker::{Broker, Listeners};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::{BrokerChannel, BrokerEndpoints, ClientTls, IdentityDir, TrustDomain, UserName, connect};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// A broker with the example policy.
pub(crate) struct Federation {
    pub(crate) home: TempDir,
    pub(crate) broker: Broker,
}

impl Federation {
    pub(crate) async fn start() -> Self {
        comity_runtime::install_crypto_provider();
        let home = tempfile::tempdir().unwrap();
        let client = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let raft = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = MemberAddress {
            raft: raft.local_addr().unwrap().to_string(),
            client: client.local_addr().unwrap().to_string(),
        };
        let init = Init {
            data: home.path().join("broker"),
            trust_domain: TrustDomain::new("comity.example").unwrap(),
            settings: Settings {
                id: 1,
                members: BTreeMap::from([(1, address)]),
                bootstrap_admins: BTreeSet::new(),
                hosts: BTreeSet::new(),
            },
            admin: UserName::new("admin").unwrap(),
            admin_out: home.path().join("admin"),
        };
        provision::init(&init).unwrap();
        let mut config = Config::load(&init.data).unwrap();
        config.admin_listen = "127.0.0.1:0".parse().unwrap();
        let broker = Broker::start_on(config, Listeners { client, raft }).await.unwrap();
        let mut leadership = broker.group().leadership();
        leadership.wait_for(|now| now.is_leader()).await.unwrap();
        let federation = Self { home, broker };
        let files = comity_policy::read_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/examples"));
        let files = files.unwrap().into_iter().map(|file| v1::PolicyFile { path: file.path, text: file.text });
        let request = v1::ApplyPolicyRequest {
            bundle: Some(v1::PolicyBundle { files: files.collect(), commit: String::new() }),
            idempotency_key: "start".to_owned(),
            ..v1::ApplyPolicyRequest::default()
        };
        PolicyServiceClient::new(federation.admin()).apply_policy(request).await.unwrap();
        federation
    }

    pub(crate) fn admin(&self) -> BrokerChannel {
        let (source, roots) = IdentityDir::new(self.home.path().join("admin")).open().unwrap();
        let brokers = BrokerEndpoints::new([self.broker.client_addr().to_string()]).unwrap();
        connect(&brokers, &ClientTls::new(roots, source.subscribe()))
    }

    pub(crate) async fn invite(&self, cluster: &str) -> String {
        let request = v1::InviteClusterRequest {
            cluster: cluster.to_owned(),
            idempotency_key: format!("invite-{cluster}"),
            ..v1::InviteClusterRequest::default()
        };
        FederationServiceClient::new(self.admin()).invite_cluster(request).await.unwrap().into_inner().token
    }
}
