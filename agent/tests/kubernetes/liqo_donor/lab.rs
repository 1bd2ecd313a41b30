//! The donor of a pair of clusters with Liqo, and its agent's tasks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_liqo::donor::{
    ClassController, DonorSettings, Grant, Grants, GuestNamespaces, InstallationSettings, LiqoDonor, NamespaceKeeper,
    PolicyKeeper, PolicySettings, check_installation,
};
use comity_agent_liqo::{LiqoPeer, PeerCredential, own_user_name, quota, resource_slice};
use comity_agent_model::forward_target::ForwardTarget;
use comity_agent_model::guest_labels::GuestLabels;
use comity_agent_model::local_policy::GuestEgress;
use comity_testkit::{Binaries, LiqoConfig, LiqoVersion, Needs, RealCluster, RealClusters, RealClustersConfig};
use kube::api::DynamicObject;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::consumer::{Consumer, Key};

/// The policies that the owner applies.
pub(crate) const POLICIES: &str = include_str!("../../../../deploy/agent/liqo-policies.yaml");
const MANIFESTS: [&str; 4] = [
    include_str!("../../../../deploy/agent/rbac.yaml"),
    include_str!("../../../../deploy/agent/tenant-role.yaml"),
    include_str!("../../../../deploy/agent/admission.yaml"),
    include_str!("../../../../deploy/agent/liqo-donor.yaml"),
];
pub(crate) const TENANT_NAMESPACE: &str = "liqo-tenant-origin";
pub(crate) const POD_NAMESPACE: &str = "team-a-origin";
/// The remote namespace of another tenant of the same consumer.
pub(crate) const OTHER_NAMESPACE: &str = "team-b-origin";
/// Rotation of tokens, in milliseconds.
pub(crate) const ROTATION_MS: u64 = 600_000;
const AGENT: &str = "system:serviceaccount:comity-system:comity-agent";

pub(crate) struct Lab {
    clusters: RealClusters,
    config: Config,
    pub(crate) admin: Client,
    /// A client with the rights of the agent's ServiceAccount.
    pub(crate) agent: Client,
    pub(crate) liqo: LiqoDonor,
    pub(crate) peer: LiqoPeer,
    pub(crate) grants: watch::Sender<Arc<Grants>>,
    tasks: Vec<JoinHandle<()>>,
}

pub(crate) fn resources() -> BTreeMap<String, String> {
    [("cpu", "4"), ("memory", "4Gi"), ("nvidia.com/gpu", "2"), ("pods", "10")]
        .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
        .into()
}

pub(crate) fn node_selector() -> BTreeMap<String, String> {
    [("kubernetes.io/os".to_owned(), "linux".to_owned())].into()
}

pub(crate) fn grant(consumer: &str) -> Grant {
    Grant {
        origin_liqo_id: consumer.into(),
        namespace: "team-a".into(),
        resources: resources(),
        node_selector: node_selector(),
        node_labels: BTreeMap::new(),
    }
}

impl Lab {
    pub(crate) async fn start() -> Self {
        let version = LiqoVersion::from_environment().unwrap();
        let binaries = Binaries::with_liqo(Needs::Liqo, version).await.unwrap();
        let config = RealClustersConfig {
            dns: false,
            liqo: Some(LiqoConfig { version, ..LiqoConfig::default() }),
            patience: Duration::from_secs(400),
            ..RealClustersConfig::default()
        };
        let clusters = RealClusters::start(&binaries, config).await.unwrap();
        for manifest in MANIFESTS {
            clusters.donor.kubectl_with_input(&["apply", "-f", "-"], manifest).await.unwrap();
        }
        let kubeconfig = Kubeconfig::read_from(clusters.donor.host_kubeconfig_path()).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let admin = Client::try_from(config.clone()).unwrap();
        let token = ["create", "token", "comity-agent", "-n", "comity-system", "--duration=1h"];
        let token = clusters.donor.kubectl(&token).await.unwrap();
        let mut agent = config.clone();
        agent.auth_info = kube::config::AuthInfo { token: Some(token.trim().to_owned().into()), ..Default::default() };
        let agent = Client::try_from(agent).unwrap();

        let found = check_installation(&agent, &InstallationSettings::default()).await.unwrap();
        assert_eq!((found.liqo_cluster_id.as_str(), found.version.as_str()), ("donor", version.number()));
        assert_eq!(own_user_name(&agent).await.unwrap(), AGENT);
        let port = config.cluster_url.port_u16().unwrap();
        // As Liqo hands it out, and as in the certificate.
        let advertised = clusters.donor.api_server();
        let ca_pem = std::fs::read_to_string(clusters.donor.ca_path()).unwrap();
        let settings = DonorSettings {
            pod_grace: Duration::from_secs(2),
            patience: Duration::from_secs(300),
            ..DonorSettings::new(&found.liqo_cluster_id, ForwardTarget::new("127.0.0.1", port), &advertised, &ca_pem)
        };
        let leases = [("lease-7", "origin"), ("lease-8", "origin"), ("lease-9", "other")];
        let grants = Grants(leases.map(|(lease, consumer)| (lease.to_owned(), grant(consumer))).into());
        let (grants, watched) = watch::channel(Arc::new(grants));
        let (_, networks) = watch::channel(Some(Arc::default()));
        let (labels, egress) = (GuestLabels::default(), GuestEgress::default());
        let guests = GuestNamespaces { labels, egress, networks, has_liqo_network: false };
        let tasks = vec![
            tokio::spawn(ClassController::run(agent.clone(), watched)),
            tokio::spawn(NamespaceKeeper::run(agent.clone(), guests)),
        ];
        Self {
            clusters,
            config,
            admin,
            liqo: LiqoDonor::new(agent.clone(), settings),
            agent,
            peer: LiqoPeer { peering: "peer-1".into(), cluster: "polytechnic".into(), liqo_id: "origin".into() },
            grants,
            tasks,
        }
    }

    pub(crate) fn donor(&self) -> &RealCluster {
        &self.clusters.donor
    }

    pub(crate) fn keep_policies(&self) -> PolicyKeeper {
        PolicyKeeper::start(
            self.agent.clone(),
            PolicySettings::default(),
            "donor",
            self.grants.subscribe(),
            tokio::spawn,
        )
    }

    /// Applies the policies, as this cluster's owner does, and removes what others added to them.
    pub(crate) async fn restore_policies(&self) {
        for verb in ["apply", "replace"] {
            self.donor().kubectl_with_input(&[verb, "-f", "-"], POLICIES).await.unwrap();
        }
    }

    pub(crate) fn slices(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.admin.clone(), TENANT_NAMESPACE, &resource_slice())
    }

    pub(crate) fn quotas(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.admin.clone(), TENANT_NAMESPACE, &quota())
    }

    /// The key exchange, twice: the second one changes nothing.
    pub(crate) async fn admit(&self) -> Consumer {
        let key = Key::generate();
        let challenge = self.liqo.challenge(&self.peer).await.unwrap();
        assert_eq!(self.liqo.challenge(&self.peer).await.unwrap(), challenge);
        let request = key.tenant_request(&challenge);
        let params = self.liqo.admit_tenant(&self.peer, &request).await.unwrap();
        assert_eq!(self.liqo.admit_tenant(&self.peer, &request).await.unwrap(), params);
        assert_eq!(params.tenant_namespace, TENANT_NAMESPACE);
        let PeerCredential::Certificate(certificate) = &params.credential else { panic!("{params:?}") };
        Consumer::new(key, self.config.clone(), certificate)
    }

    /// Lends lease-7 again.
    pub(crate) fn lend_again(&self) {
        self.grants.send_modify(|grants| {
            let mut more = Grants::clone(grants);
            more.0.insert("lease-7".to_owned(), grant("origin"));
            *grants = more.into();
        });
    }

    /// The exchange by token, twice: the second token differs and works as well.
    pub(crate) async fn admit_by_token(&self) -> Consumer {
        let first = self.liqo.admit_by_token(&self.peer, ROTATION_MS).await.unwrap();
        let second = self.liqo.mint_token(&self.peer, ROTATION_MS).await.unwrap();
        assert_ne!(first.params.credential, second.params.credential);
        assert_eq!(second.params.tenant_namespace, TENANT_NAMESPACE);
        let PeerCredential::Token(token) = &second.params.credential else { panic!("{second:?}") };
        Consumer::by_token(self.config.clone(), token.expose())
    }

    pub(crate) async fn stop(self) {
        for task in self.tasks {
            task.abort();
        }
        self.clusters.stop().await.unwrap();
    }
}
