//! Brokers and agents run as pods, from the manifests and images that ship: without privileges, and through the loss of each.

use std::time::Instant;

use comity_scenarios::burst::{DONOR, ORIGIN};
use comity_scenarios::pods::{AGENT, BROKERS, KUBECTL_IMAGE, Pods};
use comity_scenarios::{PATIENCE, until};
use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{RealCluster, RealClusters, requirements};

use crate::control_planes::pod;

/// Namespace of kubeconfig Secrets on the origin.
const LEASES: &str = "comity-leases";
const AGENTS: &str = "app.kubernetes.io/name=comity-agent";

/// Fails with what all pods say.
async fn or_logs<T, E: std::fmt::Display>(result: Result<T, E>, pods: &Pods) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error:#}\n{}", pods.logs().await),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_and_agents_run_as_pods_and_lend() {
    if !requirements::met("brokers and agents as pods", &RealClusters::missing()) {
        return;
    }
    let began = Instant::now();
    let said = |what: &str| println!("{:>7} ms  {what}", began.elapsed().as_millis());
    let pods = Pods::start().await.unwrap();
    said("three brokers and both agents are connected, as pods");
    for real in [&pods.clusters.origin, &pods.clusters.donor] {
        holds_nothing_that_it_does_not_need(real, &pods).await;
        // The token was for once.
        real.kubectl(&["-n", AGENT, "delete", "secret", "comity-agent-join"]).await.unwrap();
    }

    let federation = &pods.federation;
    let request = or_logs(federation.submit(1, "midrange").await, &pods).await;
    let lease = or_logs(federation.lease_of(&request).await, &pods).await;
    let leader = or_logs(pods.leader().await, &pods).await;
    let leader = format!("apps.kubernetes.io/pod-index={leader}");
    or_logs(pods.kill(&pods.clusters.donor, BROKERS, &leader).await, &pods).await;
    kill_the_agents(&pods).await;
    let active = or_logs(federation.lease_in(&lease, "active", PATIENCE).await, &pods).await;
    said("a lease is active, although the leader and both agents were killed on the way");

    let namespace = active["donorNamespace"].as_str().unwrap().to_owned();
    or_logs(a_tenant(&pods, &namespace).await, &pods).await;
    let work = pod("work", 1, PROBE_IMAGE);
    or_logs(
        until("the tenant's pod to be made", PATIENCE, async || {
            as_tenant(&pods, &["apply", "-f", "-"], &work).await.map(Some)
        })
        .await,
        &pods,
    )
    .await;
    runs(&pods).await;
    said("a container runs on the donor, started by a pod of the origin with the leased kubeconfig");
    let devices = or_logs(as_tenant(&pods, &["exec", "work", "--", "/probe", "ls", "/dev"], "").await, &pods).await;
    assert_eq!(devices.split_whitespace().filter(|name| name.starts_with("nvidia")).count(), 1, "{devices}");

    // Pods that come back have other addresses: the tenant's kubeconfig stays good.
    kill_the_agents(&pods).await;
    or_logs(pods.brokers_ready().await, &pods).await;
    or_logs(pods.all_connected().await, &pods).await;
    runs(&pods).await;
    said("it is reached with the same kubeconfig after both agents were killed again");

    or_logs(federation.comity(&["lease", "release", &lease]).await, &pods).await;
    or_logs(federation.lease_in(&lease, "ended", PATIENCE).await, &pods).await;
    or_logs(nothing_left(&pods).await, &pods).await;
    said("the lease has ended, and nothing of it is left");
    pods.stop().await.unwrap();
}

async fn kill_the_agents(pods: &Pods) {
    for real in [&pods.clusters.origin, &pods.clusters.donor] {
        or_logs(pods.kill(real, AGENT, AGENTS).await, pods).await;
    }
}

/// What the kernel says of the agent's process, and of the brokers' where they are: an ordinary user with no capability, no
/// way to one, and a filter of system calls.
async fn holds_nothing_that_it_does_not_need(real: &RealCluster, pods: &Pods) {
    let script = "for p in $(pgrep '^comity-'); do cat /proc/$p/status; done";
    let status = or_logs(real.exec_in_node(&["sh", "-c", script]).await, pods).await;
    let all = |field: &str| -> Vec<String> {
        status
            .lines()
            .filter_map(|line| line.strip_prefix(field))
            .map(|value| value.trim().replace('\t', " "))
            .collect()
    };
    let processes = if real.name() == pods.clusters.donor.name() { 4 } else { 1 };
    assert_eq!(all("Uid:"), vec!["65532 65532 65532 65532"; processes], "{status}");
    for field in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(all(field), vec!["0000000000000000"; processes], "{field} {status}");
    }
    assert_eq!(all("NoNewPrivs:"), vec!["1"; processes], "{status}");
    assert_eq!(all("Seccomp:"), vec!["2"; processes], "{status}");
}

/// A pod of the origin that has the lease's kubeconfig and kubectl.
async fn a_tenant(pods: &Pods, secret: &str) -> anyhow::Result<()> {
    let origin = &pods.clusters.origin;
    let tenant = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "tenant", "namespace": "{LEASES}"}}, "spec": {{
  "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
  "containers": [{{"name": "kubectl", "image": "{KUBECTL_IMAGE}", "imagePullPolicy": "Never", "args": ["proxy"],
    "env": [{{"name": "KUBECONFIG", "value": "/lease/kubeconfig"}}, {{"name": "KUBECACHEDIR", "value": "/tmp"}}],
    "volumeMounts": [{{"name": "lease", "mountPath": "/lease", "readOnly": true}}]}}],
  "volumes": [{{"name": "lease", "secret": {{"secretName": "{secret}"}}}}]}}}}"#
    );
    origin.kubectl_with_input(&["apply", "-f", "-"], &tenant).await?;
    origin.kubectl(&["-n", LEASES, "wait", "--for=condition=Ready", "pod/tenant", "--timeout=110s"]).await?;
    Ok(())
}

/// What kubectl says in the tenant's pod, with the leased kubeconfig.
async fn as_tenant(pods: &Pods, args: &[&str], input: &str) -> anyhow::Result<String> {
    let words = [&["-n", LEASES, "exec", "-i", "tenant", "--", "/kubectl"][..], args].concat();
    Ok(pods.clusters.origin.kubectl_with_input(&words, input).await?)
}

async fn runs(pods: &Pods) {
    let seen = until("the tenant's container to run", PATIENCE, async || {
        let phase = as_tenant(pods, &["get", "pod", "work", "-o", "jsonpath={.status.phase}"], "").await?;
        Ok((phase == "Running").then_some(()))
    });
    or_logs(seen.await, pods).await;
}

async fn nothing_left(pods: &Pods) -> anyhow::Result<()> {
    until("nothing to be left", PATIENCE, async || {
        let namespaces = pods.clusters.donor.kubectl(&["get", "namespaces", "-o", "name"]).await?;
        anyhow::ensure!(!namespaces.contains("comity-lease-"), "the donor has {namespaces}");
        let secrets = pods.clusters.origin.kubectl(&["-n", LEASES, "get", "secrets", "-o", "name"]).await?;
        anyhow::ensure!(secrets.trim().is_empty(), "the origin has {secrets}");
        for cluster in [ORIGIN, DONOR] {
            let seen = pods.federation.comity_as("admin", &["cluster", "show", cluster]).await?;
            anyhow::ensure!(seen["lentMilli"] == 0, "{seen}");
        }
        Ok(Some(()))
    })
    .await
}
