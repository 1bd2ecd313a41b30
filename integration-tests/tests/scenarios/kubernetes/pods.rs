//! Brokers and agents run as unprivileged pods from the released manifests and images, and survive the loss of each.

use std::time::Instant;

use comity_scenarios::burst::{DONOR, ORIGIN};
use comity_scenarios::pods::{AGENT_NAMESPACE, BROKER_NAMESPACE, KUBECTL_IMAGE, Pods};
use comity_scenarios::{PATIENCE, deploy, until};
use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{RealCluster, RealClusters, requirements};

use crate::control_planes::pod;

/// Namespace of kubeconfig Secrets on the origin.
const LEASES: &str = "comity-leases";
/// An ordinary user without capabilities, who cannot get any; system calls are filtered.
const NOTHING: &str = "65532 0 0 0 0 0 1 2";
/// Root with `CAP_NET_ADMIN` (bit 12) and no other.
pub(crate) const GATEWAY: &str = "0 0 1000 1000 1000 0 1 2";
pub(crate) const AGENTS: &str = "app.kubernetes.io/name=comity-agent";

/// Panics with the logs of all pods.
pub(crate) async fn or_logs<T, E: std::fmt::Display>(result: Result<T, E>, pods: &Pods) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error:#}\n{}", pods.logs().await),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes of its own: ./test long runs it"]
async fn brokers_and_agents_run_as_pods_and_lend() {
    if !requirements::met("brokers and agents as pods", &RealClusters::missing()) {
        return;
    }
    let began = Instant::now();
    let said = |what: &str| println!("{:>7} ms  {what}", began.elapsed().as_millis());
    let pods = Pods::start().await.unwrap();
    said("three brokers and both agents are connected, as pods");
    let RealClusters { origin, donor, .. } = pods.clusters();
    assert_eq!(held(donor, "comity-broker", &pods).await, vec![NOTHING; 3]);
    for real in [origin, donor] {
        assert_eq!(held(real, "comity-agent", &pods).await, [NOTHING]);
        // The token is valid only once.
        real.kubectl(&["-n", AGENT_NAMESPACE, "delete", "secret", "comity-agent-join"]).await.unwrap();
    }

    // `kubectl apply -f`, without kustomize, accepts the manifests, too.
    for folder in ["broker", "agent/netstack"] {
        let folder = deploy().join(folder);
        let args = ["apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", folder.to_str().unwrap()];
        or_logs(donor.kubectl(&args).await, &pods).await;
    }
    donor.kubectl(&["-n", BROKER_NAMESPACE, "delete", "secret", "comity-broker-founding"]).await.unwrap();

    // The restarted pods serve the lease.
    let federation = pods.federation();
    kill_the_agents(&pods).await;
    let request = or_logs(federation.submit(1, "midrange").await, &pods).await;
    let lease = or_logs(federation.lease_of(&request).await, &pods).await;
    let leader = or_logs(pods.leader().await, &pods).await;
    let leader = format!("apps.kubernetes.io/pod-index={leader}");
    or_logs(pods.kill(donor, BROKER_NAMESPACE, &leader).await, &pods).await;
    work_on(&lease, &pods).await;
    said("a container runs on the donor, although the leader and both agents were killed on the way");

    // Restarted pods have other addresses; the tenant's kubeconfig still works.
    kill_the_agents(&pods).await;
    or_logs(pods.brokers_ready().await, &pods).await;
    or_logs(pods.all_connected().await, &pods).await;
    runs(&pods).await;
    said("it is reached with the same kubeconfig after both agents were killed again");
    give_back(&lease, &pods).await;
    said("the lease has ended, and nothing of it is left");

    or_logs(federation.no_peering(PATIENCE).await, &pods).await;
    for real in [origin, donor] {
        or_logs(pods.into_tun(real).await, &pods).await;
        assert_eq!(held(real, "comity-agent", &pods).await, [GATEWAY]);
    }
    or_logs(pods.all_connected().await, &pods).await;
    said("both agents are gateways in mode tun, as pods");
    let request = or_logs(federation.submit(1, "midrange").await, &pods).await;
    let lease = or_logs(federation.lease_of(&request).await, &pods).await;
    work_on(&lease, &pods).await;
    let device = or_logs(origin.exec_in_node(&["ip", "-brief", "link", "show", "comity0"]).await, &pods).await;
    assert!(device.contains("LOWER_UP"), "{device}");
    said("a container runs on the donor, through a device of the node");
    give_back(&lease, &pods).await;
    pods.stop().await.unwrap();
}

/// A tenant's pod on the origin starts one on the donor, which sees its GPU.
async fn work_on(lease: &str, pods: &Pods) {
    let active = or_logs(pods.federation().lease_in(lease, "active", PATIENCE).await, pods).await;
    let secret = active["donorNamespace"].as_str().unwrap();
    or_logs(a_tenant(pods, secret).await, pods).await;
    let work = pod("work", 1, PROBE_IMAGE);
    let made = until("the tenant's pod to be made", PATIENCE, async || {
        as_tenant(pods, &["apply", "-f", "-"], &work).await.map(Some)
    });
    or_logs(made.await, pods).await;
    runs(pods).await;
    let devices = or_logs(as_tenant(pods, &["exec", "work", "--", "/probe", "ls", "/dev"], "").await, pods).await;
    assert_eq!(devices.split_whitespace().filter(|name| name.starts_with("nvidia")).count(), 1, "{devices}");
}

async fn give_back(lease: &str, pods: &Pods) {
    or_logs(pods.federation().comity(&["lease", "release", "--yes", lease]).await, pods).await;
    or_logs(pods.federation().lease_in(lease, "ended", PATIENCE).await, pods).await;
    let origin = &pods.clusters().origin;
    or_logs(origin.kubectl(&["-n", LEASES, "delete", "pod", "tenant"]).await, pods).await;
    or_logs(nothing_left(pods).await, pods).await;
}

pub(crate) async fn kill_the_agents(pods: &Pods) {
    for real in [&pods.clusters().origin, &pods.clusters().donor] {
        or_logs(pods.kill(real, AGENT_NAMESPACE, AGENTS).await, pods).await;
    }
}

/// User, capability sets, `NoNewPrivs` and seccomp mode of each process with a name, from /proc.
pub(crate) async fn held(real: &RealCluster, process: &str, pods: &Pods) -> Vec<String> {
    let script = format!("for p in $(pgrep -x {process}); do cat /proc/$p/status; echo; done");
    let status = or_logs(real.exec_in_node(&["sh", "-c", &script]).await, pods).await;
    let fields = ["Uid:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:"];
    let of = |process: &str| {
        let values = fields.map(|field| {
            let value = process.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("?");
            match value.split_whitespace().next().unwrap_or("?").trim_start_matches('0') {
                "" => "0",
                value => value,
            }
        });
        values.join(" ")
    };
    status.split("\n\n").filter(|process| !process.trim().is_empty()).map(of).collect()
}

/// A pod of the origin that has the lease's kubeconfig and kubectl.
async fn a_tenant(pods: &Pods, secret: &str) -> anyhow::Result<()> {
    let origin = &pods.clusters().origin;
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

/// Output of kubectl in the tenant's pod, with the leased kubeconfig.
async fn as_tenant(pods: &Pods, args: &[&str], input: &str) -> anyhow::Result<String> {
    let words = [&["-n", LEASES, "exec", "-i", "tenant", "--", "/kubectl"][..], args].concat();
    Ok(pods.clusters().origin.kubectl_with_input(&words, input).await?)
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
        let namespaces = pods.clusters().donor.kubectl(&["get", "namespaces", "-o", "name"]).await?;
        anyhow::ensure!(!namespaces.contains("comity-lease-"), "the donor has {namespaces}");
        let secrets = pods.clusters().origin.kubectl(&["-n", LEASES, "get", "secrets", "-o", "name"]).await?;
        anyhow::ensure!(secrets.trim().is_empty(), "the origin has {secrets}");
        for cluster in [ORIGIN, DONOR] {
            let seen = pods.federation().comity_as("admin", &["cluster", "show", cluster]).await?;
            anyhow::ensure!(seen["lentMilli"] == 0, "{seen}");
        }
        Ok(Some(()))
    })
    .await
}
