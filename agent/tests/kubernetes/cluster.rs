//! A control plane with the agent's manifests, and clients for the agent and a tenant.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comity_agent_delivery::{ApiCredential, DonorLease, GuestPolicies, NamespaceDelivery};
use comity_agent_kubernetes::api::{KubernetesApi, KubernetesSource};
use comity_agent_model::gpu_demand::GpuDemand;
use comity_agent_model::lease::placement::{NodePlacement, Placement};
use comity_agent_model::node_id::NodeSalt;
use comity_runtime::{Clock, SystemClock};
use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, Needs, SimulatedNode};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde_json::json;

const MANIFESTS: [&str; 15] = [
    // The agent looks for slices of earlier leases; there are none.
    r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "resourceslices.authentication.liqo.io"},
        "spec": {"group": "authentication.liqo.io", "scope": "Namespaced",
          "names": {"plural": "resourceslices", "singular": "resourceslice", "kind": "ResourceSlice", "listKind": "ResourceSliceList"},
          "versions": [{"name": "v1beta1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}"#,
    // NUMA nodes, as Node Feature Discovery reports them.
    r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "noderesourcetopologies.topology.node.k8s.io",
          "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"}},
        "spec": {"group": "topology.node.k8s.io", "scope": "Cluster",
          "names": {"plural": "noderesourcetopologies", "singular": "noderesourcetopology", "kind": "NodeResourceTopology", "listKind": "NodeResourceTopologyList"},
          "versions": [{"name": "v1alpha2", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}"#,
    include_str!("../../../deploy/agent/node-topology.yaml"),
    // Liqo's namespace: some rights are within it.
    "{apiVersion: v1, kind: Namespace, metadata: {name: liqo}}",
    include_str!("../../../deploy/crds/gpurequests.yaml"),
    include_str!("../../../deploy/crds/gpuleases.yaml"),
    include_str!("../../../deploy/agent/rbac.yaml"),
    include_str!("../../../deploy/agent/standby/rbac.yaml"),
    include_str!("../../../deploy/agent/tenant-role.yaml"),
    include_str!("../../../deploy/agent/dra.yaml"),
    include_str!("../../../deploy/agent/hold.yaml"),
    include_str!("../../../deploy/agent/canary.yaml"),
    include_str!("../../../deploy/agent/burst.yaml"),
    include_str!("../../../deploy/agent/webhook.yaml"),
    include_str!("../../../deploy/agent/liqo-donor.yaml"),
];
/// Salt of the node ids in these tests.
pub(crate) const SALT: NodeSalt = NodeSalt::new([7; 32]);
/// Longest wait in these tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    plane: ControlPlane,
    pub(crate) dir: tempfile::TempDir,
    /// Connected as the agent's ServiceAccount.
    pub(crate) agent: KubernetesApi,
}

/// The manifest of the guests' policies, wherever a test applies it.
pub(crate) fn guest_policies() -> &'static str {
    let manifest = include_str!("../../../deploy/agent/admission.yaml");
    // Here scripts/sabotage takes single rules away.
    std::convert::identity::<&str>(manifest)
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut config = ControlPlaneConfig::new("donor", dir.path().join("cluster"));
        config.nodes = vec![
            SimulatedNode::h100("gpu-1", 8),
            SimulatedNode::h100("gpu-2", 8),
            SimulatedNode::without_gpus("cpu-1"),
        ];
        let plane = ControlPlane::start(&binaries, config).await.unwrap();
        for manifest in MANIFESTS.into_iter().chain([guest_policies()]) {
            plane.kubectl_with_input(&["apply", "-f", "-"], manifest).await.unwrap();
        }
        plane.kubectl(&["create", "namespace", "research"]).await.unwrap();
        let token =
            plane.kubectl(&["create", "token", "comity-agent", "-n", "comity-system", "--duration=1h"]).await.unwrap();
        let path = dir.path().join("agent.kubeconfig");
        std::fs::write(&path, kubeconfig(&plane, token.trim())).unwrap();
        let agent = KubernetesApi::connect(&KubernetesSource::Kubeconfig { path, context: None }).await.unwrap();
        assert_eq!(agent.tls_server_name(), "kubernetes.default.svc");
        let policies = GuestPolicies::new(agent.client(), Arc::new(SystemClock::new()));
        eventually("a policy restricts the agent", || async { policies.check_agent().await.is_ok() }).await;
        Self { plane, dir, agent }
    }

    pub(crate) async fn stop(self) {
        self.plane.stop().await.unwrap();
    }

    pub(crate) fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// A client with every right.
    pub(crate) fn admin(&self) -> Client {
        self.plane.client()
    }

    pub(crate) fn donor(&self) -> NamespaceDelivery {
        NamespaceDelivery::new(self.agent.clone(), Arc::new(SystemClock::new()), SALT)
    }

    /// A token of a ServiceAccount: one for the API server, or one for `audience`.
    pub(crate) async fn token(&self, namespace: &str, account: &str, audience: Option<&str>) -> String {
        let audience = audience.map(|audience| format!("--audience={audience}"));
        let mut args = vec!["create", "token", account, "-n", namespace, "--duration=1h"];
        args.extend(audience.as_deref());
        self.plane.kubectl(&args).await.unwrap().trim().to_owned()
    }

    /// Connected as a ServiceAccount.
    pub(crate) async fn connect_as(&self, namespace: &str, account: &str) -> KubernetesApi {
        let token = self.token(namespace, account, None).await;
        let path = self.dir.path().join(format!("{namespace}-{account}.kubeconfig"));
        std::fs::write(&path, kubeconfig(&self.plane, &token)).unwrap();
        KubernetesApi::connect(&KubernetesSource::Kubeconfig { path, context: None }).await.unwrap()
    }

    /// Address of the API server: in these tests the tunnel's end.
    pub(crate) fn api_address(&self) -> std::net::SocketAddr {
        self.plane.server_url().trim_start_matches("https://").parse().unwrap()
    }

    /// The tenant, as on the origin: CA, name and token from the credential, and another address.
    pub(crate) fn tenant(&self, credential: &ApiCredential) -> Client {
        let mut config = kube::Config::new(self.plane.server_url().parse().unwrap());
        config.root_cert = Some(
            rustls_pki_types::pem::PemObject::pem_slice_iter(credential.ca_pem.as_bytes())
                .map(|certificate: Result<rustls_pki_types::CertificateDer<'_>, _>| certificate.unwrap().to_vec())
                .collect(),
        );
        config.tls_server_name = Some(credential.tls_server_name.clone());
        config.auth_info.token = Some(credential.token.expose().clone().into());
        config.default_namespace = credential.namespace.clone();
        Client::try_from(config).unwrap()
    }
}

fn kubeconfig(plane: &ControlPlane, token: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "agent",
        "clusters": [{ "name": "c", "cluster": { "server": plane.server_url(), "certificate-authority": plane.ca_path() } }],
        "users": [{ "name": "agent", "user": { "token": token } }],
        "contexts": [{ "name": "agent", "context": { "cluster": "c", "user": "agent" } }],
    })
    .to_string()
}

/// Three of the eight GPUs of gpu-1, with 4 cores and 16 GiB each, for half an hour.
pub(crate) fn lease(id: &str) -> DonorLease {
    DonorLease {
        lease_id: id.parse().unwrap(),
        tenant: "vision".into(),
        origin: "polytechnic".into(),
        target_namespace: String::new(),
        placement: Placement {
            donor: "donor".parse().unwrap(),
            nodes: vec![NodePlacement {
                node: SALT.node_id("gpu-1"),
                cpu_milli: 12_000,
                memory_mib: 48 * 1_024,
                ..Default::default()
            }],
            resource_name: "nvidia.com/gpu".into(),
            resource_count: 3,
            mig_profile: String::new(),
        },
        gpus: GpuDemand { count: 3, cpu_milli_per_gpu: 4_000, memory_mib_per_gpu: 16 * 1_024, ..Default::default() },
        fencing_token: 1,
        ends_at_ms: SystemClock::new().unix_ms() + 1_800_000,
    }
}

/// A pod that Pod Security `restricted` admits.
pub(crate) fn pod(name: &str, resource: &str, count: u32) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "restartPolicy": "Never",
            "securityContext": { "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [{
                "name": "work", "image": "example.invalid/work:1",
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                "resources": { "limits": { resource: count.to_string() } },
            }],
        },
    }))
    .unwrap()
}

/// The API server's code and reason for a refusal.
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> (u16, String) {
    match result.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("not a refusal: {other}"),
    }
}

/// Retries until the condition holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "still not so after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
