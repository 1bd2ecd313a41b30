//! A control plane with simulated nodes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use comity_testkit::{Binaries, Component, ControlPlane, ControlPlaneConfig, ControlPlaneError, Needs, SimulatedNode};
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(60);

/// A pod that wants `gpus` GPUs.
fn pod(name: &str, gpus: u32) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  containers:
  - {{name: main, image: comity.local/probe:1, resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}}}
"
    )
}

async fn start(name: &str, dir: &Path, nodes: Vec<SimulatedNode>) -> ControlPlane {
    let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
    let began = Instant::now();
    let cluster = ControlPlane::start(&binaries, ControlPlaneConfig { nodes, ..ControlPlaneConfig::new(name, dir) })
        .await
        .unwrap();
    eprintln!("{name}: ready after {:.1} s", began.elapsed().as_secs_f32());
    cluster
}

/// Asks until the answer is as wanted.
async fn until(cluster: &ControlPlane, args: &[&str], wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = cluster.kubectl(args).await;
        match &answer {
            Ok(text) if wanted(text) => return text.clone(),
            _ if Instant::now() > deadline => panic!("kubectl {args:?} still answers {answer:?}"),
            _ => sleep(Duration::from_millis(100)).await,
        }
    }
}

#[tokio::test]
async fn eight_gpus_run_and_the_ninth_waits() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start("donor", &dir.path().join("donor"), vec![SimulatedNode::h100("donor-1", 8)]).await;

    let labels = cluster
        .kubectl(&["get", "node", "donor-1", "-o", "jsonpath={.metadata.labels.nvidia\\.com/gpu\\.product}"])
        .await
        .unwrap();
    assert_eq!(labels, "NVIDIA-H100-80GB-HBM3");

    cluster.kubectl_with_input(&["apply", "-f", "-"], &pod("eight", 8)).await.unwrap();
    until(&cluster, &["get", "pod", "eight", "-o", "jsonpath={.status.phase} {.spec.nodeName}"], |text| {
        text == "Running donor-1"
    })
    .await;

    cluster.kubectl_with_input(&["apply", "-f", "-"], &pod("ninth", 1)).await.unwrap();
    let why = until(
        &cluster,
        &["get", "pod", "ninth", "-o", "jsonpath={.status.phase}: {.status.conditions[0].message}"],
        |text| text.contains("Insufficient"),
    )
    .await;
    assert!(why.starts_with("Pending: ") && why.contains("Insufficient nvidia.com/gpu"), "{why}");

    cluster.kubectl(&["delete", "pod", "eight"]).await.unwrap();
    until(&cluster, &["get", "pod", "ninth", "-o", "jsonpath={.status.phase}"], |text| text == "Running").await;
    cluster.stop().await.unwrap();
}

/// A kubeconfig with a token of the tenant's ServiceAccount, as the holder of a lease has it.
async fn tenant_kubeconfig(cluster: &ControlPlane, dir: &Path) -> PathBuf {
    let token = cluster.kubectl(&["-n", "tenant", "create", "token", "tenant"]).await.unwrap();
    let text = format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: '{}', tls-server-name: kubernetes.default.svc, certificate-authority: '{}'}}}}]
users: [{{name: u, user: {{token: '{token}'}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u, namespace: tenant}}}}]
current-context: c
",
        cluster.server_url(),
        cluster.ca_path().display()
    );
    let kubeconfig = dir.join("tenant.kubeconfig");
    std::fs::write(&kubeconfig, text).unwrap();
    kubeconfig
}

#[tokio::test]
async fn quota_pod_security_and_rbac_are_enforced() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start("donor", &dir.path().join("donor"), vec![SimulatedNode::h100("donor-1", 8)]).await;
    let objects = "apiVersion: v1
kind: Namespace
metadata: {name: tenant, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: gpus, namespace: tenant}
spec: {hard: {requests.nvidia.com/gpu: 3}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: tenant, namespace: tenant}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: tenant, namespace: tenant}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: ServiceAccount, name: tenant, namespace: tenant}]
";
    cluster.kubectl_with_input(&["apply", "-f", "-"], objects).await.unwrap();
    until(&cluster, &["-n", "tenant", "get", "quota", "gpus", "-o", "jsonpath={.status.hard}"], |text| {
        !text.is_empty()
    })
    .await;

    let kubeconfig = tenant_kubeconfig(&cluster, dir.path()).await;
    let loose = cluster.kubectl_as(&kubeconfig, &["apply", "-f", "-"], &pod("loose", 3)).await.unwrap_err().to_string();
    assert!(loose.contains("violates PodSecurity"), "{loose}");
    let restricted = |name: &str, gpus: u32| {
        format!(
            "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  securityContext: {{runAsNonRoot: true, runAsUser: 1000, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: main
    image: comity.local/probe:1
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"
        )
    };
    cluster.kubectl_as(&kubeconfig, &["apply", "-f", "-"], &restricted("three", 3)).await.unwrap();
    let fourth =
        cluster.kubectl_as(&kubeconfig, &["apply", "-f", "-"], &restricted("fourth", 1)).await.unwrap_err().to_string();
    assert!(fourth.contains("exceeded quota: gpus"), "{fourth}");
    let elsewhere =
        cluster.kubectl_as(&kubeconfig, &["-n", "default", "get", "pods"], "").await.unwrap_err().to_string();
    assert!(elsewhere.contains("forbidden"), "{elsewhere}");

    // A namespace that goes takes its pods and the token with it.
    cluster.kubectl(&["delete", "namespace", "tenant", "--timeout=60s"]).await.unwrap();
    // An API server caches the owner of a token for ten seconds; until then it only denies the rights.
    let began = Instant::now();
    loop {
        let refused = cluster.kubectl_as(&kubeconfig, &["get", "pods"], "").await.unwrap_err().to_string();
        if refused.contains("Unauthorized") || refused.contains("must be logged in") {
            break;
        }
        assert!(refused.contains("forbidden") && began.elapsed().as_secs() < 30, "{refused}");
        sleep(Duration::from_secs(1)).await;
    }
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_killed_daemon_stays_down_until_it_is_started() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start("donor", &dir.path().join("donor"), vec![SimulatedNode::l40s("donor-1", 2)]).await;
    cluster.kubectl(&["create", "namespace", "before"]).await.unwrap();
    for component in [Component::ApiServer, Component::Etcd] {
        let pid = cluster.pid(component).unwrap();
        cluster.kill(component);
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{component:?} is still there");
        assert_eq!(cluster.pid(component), None);
        assert!(cluster.kubectl(&["get", "namespace", "before", "--request-timeout=2s"]).await.is_err());
        cluster.restart(component).unwrap();
        cluster.ready().await.unwrap();
    }
    until(&cluster, &["get", "namespace", "before", "-o", "name"], |text| text.trim() == "namespace/before").await;
    cluster.stop().await.unwrap();
}

#[tokio::test]
async fn a_kept_state_is_found_again_with_the_same_address_and_credentials() {
    let dir = tempfile::tempdir().unwrap();
    let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
    let mut config = ControlPlaneConfig::new("kept", dir.path().join("kept"));
    config.keep_state = true;
    config.nodes = vec![SimulatedNode::a100("kept-1", 4)];

    let first = ControlPlane::start(&binaries, config.clone()).await.unwrap();
    first.kubectl(&["create", "configmap", "mine", "--from-literal=key=value"]).await.unwrap();
    let (url, kubeconfig) = (first.server_url(), first.admin_kubeconfig().to_owned());
    let old = dir.path().join("old.kubeconfig");
    std::fs::write(&old, kubeconfig).unwrap();
    first.stop().await.unwrap();

    let second = ControlPlane::start(&binaries, config).await.unwrap();
    assert_eq!(second.server_url(), url);
    let value = second.kubectl_as(&old, &["get", "configmap", "mine", "-o", "jsonpath={.data.key}"], "").await.unwrap();
    assert_eq!(value, "value");
    second.stop().await.unwrap();
}

#[tokio::test]
async fn a_daemon_that_ends_is_named_with_its_status_and_log() {
    let dir = tempfile::tempdir().unwrap();
    let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
    let config = ControlPlaneConfig::new("broken", dir.path().join("broken"));
    // An etcd data folder that is a file: etcd cannot start.
    std::fs::create_dir_all(dir.path().join("broken/etcd")).unwrap();
    let config = ControlPlaneConfig { keep_state: true, ..config };
    std::fs::create_dir_all(dir.path().join("broken/etcd/member")).unwrap();
    std::fs::write(dir.path().join("broken/etcd/member/snap"), "not a folder").unwrap();
    let error = ControlPlane::start(&binaries, config).await.unwrap_err();
    let ControlPlaneError::Ended { component, log, .. } = &error else { panic!("{error}") };
    assert_eq!(*component, "etcd");
    assert!(log.contains("snap"), "{log}");
}
