//! One broker with the example policy, and clients of every kind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_broker::config::{Config, Settings};
use comity_broker::group::{Consistency, MemberAddress};
use comity_broker::provision::{self, Init};
use comity_broker::{Broker, Listeners};
use comity_core::State;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::ca::{CertificateAuthority, KeyAndCsr};
use comity_runtime::entropy::SystemEntropy;
use comity_runtime::identity::{IdentityDir, IdentityPem, IdentitySource, TlsIdentity};
use comity_runtime::join_token::JoinToken;
use comity_runtime::signing::IdentityKey;
use comity_runtime::spiffe::{ClusterName, SpiffeId, TrustDomain, UserName};
use comity_runtime::tls::{BrokerChannel, BrokerEndpoints, ClientTls, connect};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tonic::{Code, Status};

/// Trust domain of the example policy.
pub(crate) const DOMAIN: &str = "comity.example";

/// A broker, its files, and its clients' credentials.
pub(crate) struct Federation {
    home: TempDir,
    pub(crate) config: Config,
    broker: Option<Broker>,
    /// Brokers 2 and 3, if there are three.
    others: Vec<Broker>,
}

/// A cluster that joined.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) identity: IdentityKey,
    pub(crate) pem: IdentityPem,
}

pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), work).await.unwrap_or_else(|_| panic!("{what}: not within 30 s"))
}

impl Federation {
    /// Without a policy bundle.
    pub(crate) async fn bare() -> Self {
        let home = tempfile::tempdir().unwrap();
        let (listeners, address) = local_listeners().await;
        let settings = Settings {
            id: 1,
            members: BTreeMap::from([(1, address)]),
            bootstrap_admins: BTreeSet::new(),
            hosts: BTreeSet::new(),
        };
        let init = Init {
            data: home.path().join("broker-1"),
            trust_domain: TrustDomain::new(DOMAIN).unwrap(),
            settings,
            admin: UserName::new("admin").unwrap(),
            admin_out: home.path().join("admin"),
        };
        provision::init(&init).unwrap();
        let mut config = Config::load(&init.data).unwrap();
        config.admin_listen = "127.0.0.1:0".parse().unwrap();
        let broker = Broker::start_on(config.clone(), listeners).await.unwrap();
        let federation = Self { home, config, broker: Some(broker), others: Vec::new() };
        within("a leader", federation.led()).await;
        federation
    }

    /// Three brokers, with the example policy in force.
    pub(crate) async fn of_three() -> Self {
        let home = tempfile::tempdir().unwrap();
        let data = |id: u64| home.path().join(format!("broker-{id}"));
        let (mut members, mut listeners) = (BTreeMap::new(), Vec::new());
        for id in 1..=3 {
            let (bound, address) = local_listeners().await;
            members.insert(id, address);
            listeners.push(bound);
        }
        let settings = Settings { id: 1, members, bootstrap_admins: BTreeSet::new(), hosts: BTreeSet::new() };
        let init = Init {
            data: data(1),
            trust_domain: TrustDomain::new(DOMAIN).unwrap(),
            settings,
            admin: UserName::new("admin").unwrap(),
            admin_out: home.path().join("admin"),
        };
        provision::init(&init).unwrap();
        for id in 2..=3 {
            let new = provision::NewBroker { id, hosts: BTreeSet::new() };
            provision::add_identity(&data(1), &new, &data(id)).unwrap();
        }
        let starting = (1..=3).zip(listeners).map(|(id, listeners)| {
            let mut config = Config::load(&data(id)).unwrap();
            config.admin_listen = "127.0.0.1:0".parse().unwrap();
            Broker::start_on(config, listeners)
        });
        let mut brokers = futures::future::try_join_all(starting).await.unwrap();
        let config = Config::load(&data(1)).unwrap();
        let broker = Some(brokers.remove(0));
        let federation = Self { home, config, broker, others: brokers };
        within("the policy", async {
            while federation.apply_examples("start").await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
        federation
    }

    /// With the example policy in force.
    pub(crate) async fn start() -> Self {
        let federation = Self::bare().await;
        let reply = federation.apply_examples("start").await.unwrap();
        assert!(reply.problems.is_empty() && reply.changed, "{reply:?}");
        federation
    }

    pub(crate) async fn apply_examples(&self, key: &str) -> Result<v1::ApplyPolicyResponse, Status> {
        let request = v1::ApplyPolicyRequest {
            bundle: Some(examples()),
            idempotency_key: key.to_owned(),
            ..v1::ApplyPolicyRequest::default()
        };
        let reply = PolicyServiceClient::new(self.user("admin")).apply_policy(request).await?;
        Ok(reply.into_inner())
    }

    pub(crate) fn broker(&self) -> &Broker {
        self.broker.as_ref().unwrap()
    }

    async fn led(&self) {
        let mut leadership = self.broker().group().leadership();
        leadership.wait_for(|now| now.is_leader()).await.unwrap();
    }

    /// Stops the broker and starts it again from its disk, on the same ports.
    pub(crate) async fn restart(&mut self) {
        let address = self.broker().client_addr();
        let raft = self.broker().raft_addr();
        self.broker.take().unwrap().shutdown().await;
        let mut config = self.config.clone();
        (config.client_listen, config.raft_listen) = (address, raft);
        self.broker = Some(Broker::start(config).await.unwrap());
        within("a leader again", self.led()).await;
    }

    /// Stops one of three brokers, 3 before 2. Returns its configuration, with the ports that it had.
    pub(crate) async fn stop(&mut self, id: u64) -> Config {
        let mut config = Config::load(&self.home.path().join(format!("broker-{id}"))).unwrap();
        let broker = if id == 1 { self.broker.take() } else { self.others.pop() }.unwrap();
        config.admin_listen = "127.0.0.1:0".parse().unwrap();
        (config.client_listen, config.raft_listen) = (broker.client_addr(), broker.raft_addr());
        broker.shutdown().await;
        config
    }

    pub(crate) async fn revision(&self) -> u64 {
        self.broker().group().read(Consistency::Stale, |state| state.revision).await.unwrap()
    }

    /// Waits until the log says that a cluster is heard, which brokers record some time after its agent connects. Nothing
    /// is placed there before.
    pub(crate) async fn until_connected(&self, cluster: &str) {
        let is_connected =
            |state: &State| state.clusters.iter().any(|(id, record)| id.as_str() == cluster && record.connected);
        within("the cluster is connected", async {
            while !self.broker().group().read(Consistency::Stale, is_connected).await.unwrap() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.config.data.clone()
    }

    pub(crate) fn ca(&self) -> CertificateAuthority {
        CertificateAuthority::load(&self.data().join("ca")).unwrap()
    }

    fn endpoints(&self) -> BrokerEndpoints {
        BrokerEndpoints::new([self.broker().client_addr().to_string()]).unwrap()
    }

    /// A user's certificate, made when it is first needed.
    pub(crate) fn user_pem(&self, name: &str) -> IdentityPem {
        let dir = self.home.path().join(name);
        if !IdentityDir::new(&dir).exists() {
            provision::issue_user(&self.data(), &UserName::new(name).unwrap(), provision::USER_VALIDITY, &dir).unwrap();
        }
        IdentityDir::new(&dir).load().unwrap().0
    }

    /// A user's channel.
    pub(crate) fn user(&self, name: &str) -> BrokerChannel {
        self.channel(&self.user_pem(name))
    }

    pub(crate) fn anonymous(&self) -> BrokerChannel {
        connect(&self.endpoints(), &ClientTls::anonymous(self.ca().roots().clone()))
    }

    pub(crate) fn channel(&self, pem: &IdentityPem) -> BrokerChannel {
        let source = IdentitySource::new(TlsIdentity::from_pem(pem).unwrap());
        connect(&self.endpoints(), &ClientTls::new(self.ca().roots(), source.subscribe()))
    }

    /// All brokers, in order.
    pub(crate) fn brokers(&self) -> impl Iterator<Item = &Broker> {
        self.broker.iter().chain(&self.others)
    }

    /// A channel to each broker, in order.
    pub(crate) fn channels(&self, pem: &IdentityPem) -> Vec<BrokerChannel> {
        self.brokers().map(|broker| self.channel_to(broker, pem)).collect()
    }

    pub(crate) fn channel_to(&self, broker: &Broker, pem: &IdentityPem) -> BrokerChannel {
        let source = IdentitySource::new(TlsIdentity::from_pem(pem).unwrap());
        let endpoints = BrokerEndpoints::new([broker.client_addr().to_string()]).unwrap();
        connect(&endpoints, &ClientTls::new(self.ca().roots(), source.subscribe()))
    }

    /// The identity of a user.
    pub(crate) fn pem_of(&self, name: &str) -> IdentityPem {
        drop(self.user(name));
        IdentityDir::new(self.home.path().join(name)).load().unwrap().0
    }

    pub(crate) async fn invite(&self, cluster: &str, key: &str) -> Result<v1::InviteClusterResponse, Status> {
        let request = v1::InviteClusterRequest {
            cluster: cluster.to_owned(),
            ttl_ms: 0,
            idempotency_key: key.to_owned(),
            replace: false,
        };
        Ok(FederationServiceClient::new(self.user("admin")).invite_cluster(request).await?.into_inner())
    }

    /// Invites a cluster and joins in its name, as an agent does: the server is known by the pin in the token only.
    pub(crate) async fn join(&self, cluster: &str) -> Member {
        let invited = self.invite(cluster, &format!("invite-{cluster}")).await.unwrap();
        let token: JoinToken = invited.token.parse().unwrap();
        assert!(token.brokers.addresses().contains(&self.broker().client_addr().to_string()));
        let identity = IdentityKey::generate(&SystemEntropy);
        let (request, key) = join_request(cluster, token.secret.expose(), &identity);
        let tls = ClientTls::pinned(token.ca_sha256, token.id.trust_domain().clone());
        let mut client = FederationServiceClient::new(connect(&token.brokers, &tls));
        let reply = client.join(request).await.unwrap().into_inner();
        let pem = IdentityPem { key: key.key_pem, chain: reply.certificate_pem, ca: reply.ca_pem };
        Member { name: cluster.to_owned(), identity, pem }
    }
}

/// A join request with a fresh TLS key.
pub(crate) fn join_request(cluster: &str, secret: &[u8], identity: &IdentityKey) -> (v1::JoinRequest, KeyAndCsr) {
    let key = KeyAndCsr::generate().unwrap();
    let proof = identity.sign(comity_broker::api::rpc::federation_service::JOIN_PROOF_DOMAIN, &[key.csr.as_bytes()]);
    let request = v1::JoinRequest {
        cluster: cluster.to_owned(),
        secret: secret.to_vec(),
        csr_der: key.csr.as_bytes().to_vec(),
        identity_key: identity.public().to_string(),
        voucher: Vec::new(),
        identity_proof: proof.as_bytes().to_vec(),
    };
    (request, key)
}

/// An identity of this authority, which may be anybody's.
pub(crate) fn identity_of(ca: &CertificateAuthority, cluster: &str) -> IdentityPem {
    let id = SpiffeId::cluster(ca.trust_domain().clone(), ClusterName::new(cluster).unwrap());
    ca.new_identity(&id, &[], Duration::from_secs(3600), std::time::SystemTime::now()).unwrap()
}

/// A certificate of broker 1, as its data directory has one.
pub(crate) fn broker_identity(ca: &CertificateAuthority) -> IdentityPem {
    let id = SpiffeId::broker(ca.trust_domain().clone(), 1);
    ca.new_identity(&id, &[], Duration::from_secs(3600), std::time::SystemTime::now()).unwrap()
}

pub(crate) fn examples() -> v1::PolicyBundle {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/examples");
    let files = comity_policy::read_directory(&directory).unwrap();
    let files = files.into_iter().map(|file| v1::PolicyFile { path: file.path, text: file.text }).collect();
    v1::PolicyBundle { files, commit: String::new() }
}

pub(crate) async fn local_listeners() -> (Listeners, MemberAddress) {
    let client = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let raft = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = MemberAddress {
        raft: raft.local_addr().unwrap().to_string(),
        client: client.local_addr().unwrap().to_string(),
    };
    (Listeners { client, raft }, address)
}

/// Error detail of a refused call.
pub(crate) fn detail(status: &Status) -> v1::ErrorDetail {
    comity_proto::error_detail(status).unwrap_or_else(|| panic!("no details: {status:?}"))
}

/// Asserts the code, field and value of a refusal, and that it has a remedy.
pub(crate) fn assert_refused<T: std::fmt::Debug>(reply: Result<T, Status>, code: Code, field: &str, value: &str) {
    let status = reply.unwrap_err();
    let detail = detail(&status);
    assert_eq!(status.code(), code, "{status:?}");
    assert_eq!((detail.field.as_str(), detail.value.as_str()), (field, value), "{detail:?}");
    assert!(!detail.remedy.is_empty() && !detail.code.is_empty(), "{detail:?}");
}

/// Three whole GPUs for the machine-learning group.
pub(crate) fn spec() -> v1::RequestSpec {
    v1::RequestSpec {
        tenant: "poly-ml".to_owned(),
        origin: "polytech-campus".to_owned(),
        gpus: Some(v1::GpuDemand {
            class: "midrange".to_owned(),
            share: Some(v1::Share { kind: Some(v1::share::Kind::Whole(v1::share::Whole {})) }),
            count: 3,
            cpu_milli_per_gpu: 4_000,
            memory_mib_per_gpu: 16_384,
            ..v1::GpuDemand::default()
        }),
        duration_ms: 3_600_000,
        delivery: v1::Delivery::Namespace.into(),
        ..v1::RequestSpec::default()
    }
}
