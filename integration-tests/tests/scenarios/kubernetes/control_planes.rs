//! Two real control planes: a donor with two simulated nodes of eight GPUs, and an origin without GPUs.

use std::path::Path;
use std::time::{Duration, Instant};

use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, PATIENCE, apply_admission, until};
use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, KubectlError, Needs, SimulatedNode};
use serde_json::json;

use crate::OrLogs as _;
use crate::crashes::{DONOR_STEPS, ORIGIN_STEPS, crashed_before, nurse};

const CLEANING: &str = include_str!("../../../../deploy/agent/clean.yaml");

/// A pod for `gpus` GPUs that Pod Security `restricted` admits, and without any the donor of a lease, too.
pub(crate) fn pod(name: &str, gpus: u32, image: &str) -> String {
    let env = if gpus == 0 { r#"{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}"# } else { "" };
    format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "{name}"}}, "spec": {{
  "automountServiceAccountToken": false, "restartPolicy": "Never",
  "securityContext": {{"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {{"type": "RuntimeDefault"}}}},
  "containers": [{{"name": "work", "image": "{image}", "imagePullPolicy": "Never", "env": [{env}],
    "securityContext": {{"allowPrivilegeEscalation": false, "capabilities": {{"drop": ["ALL"]}}}},
    "resources": {{"requests": {{"cpu": "100m", "memory": "64Mi"}}, "limits": {{"cpu": "500m", "memory": "128Mi", "nvidia.com/gpu": "{gpus}"}}}}}}]}}}}"#
    )
}

/// A control plane with the policies of a donor.
pub(crate) async fn control_plane(dir: &Path, name: &str, nodes: Vec<SimulatedNode>) -> ControlPlane {
    let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
    let mut config = ControlPlaneConfig::new(name, dir.join(name));
    config.nodes = nodes;
    let plane = ControlPlane::start(&binaries, config).await.unwrap();
    apply_admission(&plane).await.unwrap();
    plane
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_gpus_are_lent_through_the_tunnel_and_a_fourth_is_refused() {
    let clusters = tempfile::tempdir().unwrap();
    let (origin, donor) = tokio::join!(
        control_plane(clusters.path(), "origin", vec![SimulatedNode::without_gpus("campus-1")]),
        control_plane(clusters.path(), "donor", vec![SimulatedNode::h100("ncc-1", 8), SimulatedNode::h100("ncc-2", 8)]),
    );
    donor.kubectl_with_input(&["apply", "-f", "-"], CLEANING).await.unwrap();
    let mut federation = Federation::start(FederationConfig::with_example_policy()).await.unwrap();
    for (cluster, plane, more) in
        [("polytech-campus", &origin, ""), ("ncc-main", &donor, "sharing: {cleanNodes: true, alwaysPullImages: false}")]
    {
        let inventory = InventorySource::Kubernetes(plane.admin_kubeconfig_path());
        let crash_at = (cluster == "ncc-main").then(|| "prepare-lease:before".to_owned());
        let spec = AgentSpec { more: more.to_owned(), crash_at, ..AgentSpec::new(cluster, inventory) };
        federation.join(spec).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    let seen = federation.comity_as("admin", &["cluster", "show", "ncc-main"]).await.or_logs(&federation);
    assert_eq!(seen["devices"], 16, "{seen}");
    gpus_that_local_work_took_are_not_lent(&mut federation, &donor).await;

    // Nobody will use this one.
    let unused = federation.submit_with(1, "frontier", &["--release-idle", "10s"]).await.or_logs(&federation);
    let unused = federation.lease_of(&unused).await.or_logs(&federation);
    let request = federation.submit(3, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    let active = federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    let namespace = active["donorNamespace"].as_str().unwrap().to_owned();

    // The origin holds the kubeconfig as a Secret; the agent gives the same to `comity lease kubeconfig`.
    let secret = active["secretName"].as_str().unwrap();
    let target = active["targetNamespace"].as_str().unwrap();
    origin.kubectl(&["-n", target, "get", "secret", secret]).await.unwrap();
    let leased = federation.kubeconfig(&lease, "polytech-campus").await.or_logs(&federation);

    // Through the tunnel: three GPUs are accepted and run, a fourth is refused by the quota.
    origin.kubectl_as(&leased, &["apply", "-f", "-"], &pod("three", 3, "any")).await.or_logs(&federation);
    until("the pod to run", PATIENCE, async || {
        let phase = origin.kubectl_as(&leased, &["get", "pod", "three", "-o", "jsonpath={.status.phase}"], "").await?;
        Ok((phase == "Running").then_some(()))
    })
    .await
    .or_logs(&federation);
    let refused =
        origin.kubectl_as(&leased, &["apply", "-f", "-"], &pod("fourth", 1, "any")).await.unwrap_err().to_string();
    assert!(refused.contains("exceeded quota") && refused.contains("nvidia.com/gpu"), "{refused}");

    nothing_else_is_allowed(&origin, &leased).await;

    succeed(&donor, &cleaning_pod(&donor, &unused).await).await.unwrap();
    let idle = federation.lease_in(&unused, "ended", PATIENCE).await.or_logs(&federation);
    assert_eq!((&idle["endReason"], &idle["message"]), (&json!("idle"), &json!("no work used it for 10s")), "{idle}");
    let used = federation.comity(&["lease", "show", &lease]).await.or_logs(&federation);
    assert_eq!(used["state"], "active", "{used}");

    // Released: the token is refused, the namespace and the Secret are gone.
    let admin_view = |args: &'static [&'static str]| donor.kubectl(args);
    federation.comity(&["lease", "release", "--yes", &lease]).await.or_logs(&federation);
    let pod = cleaning_pod(&donor, &lease).await;
    let waits = federation.comity(&["lease", "show", &lease]).await.or_logs(&federation);
    assert_eq!(waits["state"], "ending", "its node is not clean: {waits}");
    succeed(&donor, &pod).await.unwrap();
    federation.lease_in(&lease, "ended", PATIENCE).await.or_logs(&federation);
    let refused =
        origin.kubectl_as(&leased, &["get", "pods", "--request-timeout=5s"], "").await.unwrap_err().to_string();
    assert!(!refused.is_empty());
    let token = std::fs::read_to_string(&leased).unwrap();
    let direct = token.replace(&port_of(&token), &format!("server: {}", donor.server_url()));
    let direct_path = clusters.path().join("direct.kubeconfig");
    std::fs::write(&direct_path, direct).unwrap();
    the_token_dies(&origin, &direct_path, &federation).await;
    let namespaces = admin_view(&["get", "namespaces", "-o", "name"]).await.unwrap();
    assert!(!namespaces.contains(&namespace), "{namespaces}");
    assert!(origin.kubectl(&["-n", target, "get", "secret", secret]).await.is_err());
    drop(federation);
    origin.stop().await.unwrap();
    donor.stop().await.unwrap();
}

/// The donor's agent dies before it prepares a lease of a whole node. Local pods come meanwhile, so it refuses the lease.
async fn gpus_that_local_work_took_are_not_lent(federation: &mut Federation, donor: &ControlPlane) {
    let request = federation.submit_with(8, "frontier", &["--same-node"]).await.or_logs(federation);
    let lease = federation.lease_of(&request).await.or_logs(federation);
    let start = Instant::now();
    while federation.ended_agents().unwrap().is_empty() {
        assert!(start.elapsed() < PATIENCE, "the agent did not reach its crash point\n{}", federation.logs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for node in ["ncc-1", "ncc-2"] {
        let local = pod(node, 1, "any").replace("\"spec\": {", &format!("\"spec\": {{\"nodeName\": \"{node}\","));
        donor.kubectl_with_input(&["apply", "-f", "-"], &local).await.unwrap();
    }
    federation.restart_ended_agents().unwrap();
    let cleaning = format!("comity.dev/lease={lease}");
    let refused = until("the refused lease to end", PATIENCE, async || {
        // An agent that had begun to prepare the lease cleans its node.
        let pods = donor.kubectl(&["-n", "comity-clean", "get", "pods", "-l", &cleaning, "-o", "name"]).await?;
        for pod in pods.lines().filter_map(|line| line.strip_prefix("pod/")) {
            succeed(donor, pod).await?;
        }
        let seen = federation.comity(&["lease", "show", &lease]).await?;
        Ok((seen["state"] == "ended").then_some(seen))
    })
    .await
    .or_logs(federation);
    let message = refused["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("ncc-main: local work holds GPUs") && message.ends_with("(local-use)"), "{refused}");
    assert_eq!(refused["endReason"], "donor-failed", "{refused}");
    federation.comity(&["request", "cancel", "--yes", &request]).await.or_logs(federation);
    donor.kubectl(&["delete", "pods", "ncc-1", "ncc-2", "--grace-period=0", "--force"]).await.unwrap();
    federation.all_connected().await.or_logs(federation);
}

/// The cleaning pod on the node of a lease that ends. Nothing runs it here: the nodes are simulated.
async fn cleaning_pod(donor: &ControlPlane, lease: &str) -> String {
    let selector = format!("comity.dev/lease={lease}");
    until("the cleaning pod", PATIENCE, async || {
        let name = "jsonpath={.items[0].metadata.name}";
        let found = donor.kubectl(&["-n", "comity-clean", "get", "pods", "-l", &selector, "-o", name]).await;
        Ok(found.ok().filter(|name| !name.is_empty()))
    })
    .await
    .unwrap()
}

async fn succeed(donor: &ControlPlane, pod: &str) -> Result<(), KubectlError> {
    let patch = r#"{"status": {"phase": "Succeeded"}}"#;
    let args = ["-n", "comity-clean", "patch", "pod", pod, "--subresource=status", "--type=merge", "-p", patch];
    donor.kubectl(&args).await.map(drop)
}

async fn the_token_dies(origin: &ControlPlane, direct: &Path, federation: &Federation) {
    // Its RoleBinding is gone, so it has no rights at once; after the API server's cache time (10 s) it is invalid.
    let refused = origin.kubectl_as(direct, &["get", "pods"], "").await.unwrap_err().to_string();
    assert!(refused.contains("orbidden") || is_nobody(&refused), "{refused}");
    until("the token to be dead", PATIENCE, async || {
        let refused = origin.kubectl_as(direct, &["get", "pods"], "").await.unwrap_err().to_string();
        anyhow::ensure!(is_nobody(&refused), "{refused}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
}

/// Another namespace, nodes, the token's own Secret, its rights and a privileged pod are refused.
async fn nothing_else_is_allowed(origin: &ControlPlane, leased: &Path) {
    for args in [
        &["-n", "kube-system", "get", "pods"][..],
        &["get", "nodes"],
        &["get", "namespaces"],
        &["-n", "default", "get", "secrets"],
        &["create", "rolebinding", "more", "--clusterrole=admin", "--serviceaccount=default:default"],
        &["delete", "resourcequota", "--all"],
    ] {
        let refused = origin.kubectl_as(leased, args, "").await.unwrap_err().to_string();
        assert!(refused.contains("orbidden"), "{args:?}: {refused}");
    }
    let privileged = pod("root", 0, "any").replace("\"allowPrivilegeEscalation\": false", "\"privileged\": true");
    let refused = origin.kubectl_as(leased, &["apply", "-f", "-"], &privileged).await.unwrap_err().to_string();
    assert!(refused.contains("PodSecurity"), "{refused}");
}

/// Whether the API server rejected the token, which kubectl reports in one of two ways.
fn is_nobody(refused: &str) -> bool {
    refused.contains("Unauthorized") || refused.contains("logged in")
}

/// The line that names the server in a kubeconfig.
fn port_of(kubeconfig: &str) -> String {
    kubeconfig
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: ").map(|rest| format!("server: {rest}")))
        .unwrap()
}

/// Before and after each of `steps`.
fn at_every(steps: &[&str]) -> Option<String> {
    Some(
        steps.iter().flat_map(|step| [format!("{step}:before"), format!("{step}:after")]).collect::<Vec<_>>().join(","),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_leader_and_both_agents_killed_at_every_step_it_still_becomes_active_and_leaves_nothing() {
    let clusters = tempfile::tempdir().unwrap();
    let (origin, donor) = tokio::join!(
        control_plane(clusters.path(), "origin", vec![SimulatedNode::without_gpus("campus-1")]),
        control_plane(clusters.path(), "donor", vec![SimulatedNode::h100("ncc-1", 8), SimulatedNode::h100("ncc-2", 8)]),
    );
    let mut federation = Federation::start(FederationConfig::with_example_policy()).await.unwrap();
    for (cluster, plane, steps) in
        [("polytech-campus", &origin, &ORIGIN_STEPS[..]), ("ncc-main", &donor, &DONOR_STEPS[..])]
    {
        let inventory = InventorySource::Kubernetes(plane.admin_kubeconfig_path());
        let spec = AgentSpec { crash_at: at_every(steps), ..AgentSpec::new(cluster, inventory) };
        federation.join(spec).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    let request = federation.submit(3, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    let leader = federation.leader().await.or_logs(&federation);
    federation.kill_broker(leader).await.unwrap();
    // The crash of a concurrent step may interrupt a step whose effect is already stored. Then it does not run again,
    // and never reaches its second crash point. The scenario `crashes` crashes each step alone, at both points.
    let steps = ORIGIN_STEPS.len() + DONOR_STEPS.len();
    nurse(&mut federation, &lease, "active", steps, 2 * steps).await;
    for (cluster, steps) in [("polytech-campus", &ORIGIN_STEPS[..]), ("ncc-main", &DONOR_STEPS[..])] {
        for step in steps {
            assert!(crashed_before(&federation, cluster, step), "{cluster} never began {step}");
        }
    }
    federation.start_broker(leader).unwrap();

    let leased = federation.kubeconfig(&lease, "polytech-campus").await.or_logs(&federation);
    origin.kubectl_as(&leased, &["apply", "-f", "-"], &pod("three", 3, "any")).await.or_logs(&federation);
    federation.comity(&["lease", "release", "--yes", &lease]).await.or_logs(&federation);
    nurse(&mut federation, &lease, "ended", 0, 0).await;
    let namespaces = donor.kubectl(&["get", "namespaces", "-o", "name"]).await.unwrap();
    assert!(!namespaces.contains("comity-lease"), "{namespaces}");
    let secrets = origin.kubectl(&["get", "secrets", "-A", "-o", "name"]).await.unwrap();
    assert!(!secrets.contains("comity-lease"), "{secrets}");
    let seen = federation.comity_as("admin", &["cluster", "show", "ncc-main"]).await.or_logs(&federation);
    assert_eq!(seen["lentMilli"], 0, "{seen}");
    drop(federation);
    origin.stop().await.unwrap();
    donor.stop().await.unwrap();
}
