//! Two clusters with DNS and Liqo, and faults between them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use comity_testkit::real_clusters::LIQO_NAMESPACE;
use comity_testkit::{
    Binaries, Line, LiqoConfig, Needs, RealCluster, RealClusters, RealClustersConfig, Where, requirements,
};

use crate::real::{left, networks, pod, turn, until};

/// A tenant namespace as a provider has it, with the Secret that Liqo fills with a nonce.
const TENANT: &str = "
apiVersion: v1
kind: Namespace
metadata:
  name: liqo-tenant-somebody
  labels: {liqo.io/remote-cluster-id: somebody, liqo.io/tenant-namespace: 'true'}
---
apiVersion: v1
kind: Secret
metadata:
  name: liqo-nonce
  namespace: liqo-tenant-somebody
  labels: {liqo.io/nonce: 'true', liqo.io/remote-cluster-id: somebody}
";

/// Refused by Liqo's webhook for its name, which the definition of the resource allows.
const MISNAMED: &str = "
apiVersion: offloading.liqo.io/v1beta1
kind: NamespaceOffloading
metadata: {name: misnamed, namespace: default}
spec: {podOffloadingStrategy: Local, namespaceMappingStrategy: DefaultName, clusterSelector: {nodeSelectorTerms: []}}
";

async fn pods_resolve_and_reach_services(cluster: &RealCluster) {
    cluster.kubectl_with_input(&["apply", "-f", "-"], &pod("server", 0)).await.unwrap();
    cluster.kubectl(&["label", "pod", "server", "app=web"]).await.unwrap();
    cluster.kubectl(&["create", "service", "clusterip", "web", "--tcp=80:8080"]).await.unwrap();
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/server", "--timeout=60s"]).await.unwrap();
    let ip = cluster.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]).await.unwrap();
    for name in ["web", "web.default", "web.default.svc.cluster.local"] {
        let resolved =
            until(cluster, &["exec", "server", "--", "/probe", "resolve", name], |text| !text.is_empty()).await;
        assert_eq!(resolved.trim(), ip, "{name} in {}", cluster.name());
    }
    let api = cluster.kubectl(&["exec", "server", "--", "/probe", "resolve", "kubernetes.default"]).await.unwrap();
    assert!(api.trim().ends_with(".0.1"), "the API server's Service is {api}");
    let answer = ["exec", "server", "--", "/probe", "get", "http://web.default.svc.cluster.local/healthz"];
    until(cluster, &answer, |text| text.trim() == "ok").await;
    let unknown =
        cluster.kubectl(&["exec", "server", "--", "/probe", "resolve", "nobody.default.svc.cluster.local"]).await;
    assert!(unknown.unwrap_err().to_string().contains("no such host"));
}

async fn liqo_runs(cluster: &RealCluster) {
    let of_liqo = |args: &[&'static str]| [&["-n", LIQO_NAMESPACE], args].concat();
    let deployments = of_liqo(&[
        "get",
        "deployments",
        "-o",
        "jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type==\"Available\")].status} {end}",
    ]);
    let deployments = cluster.kubectl(&deployments).await.unwrap();
    assert_eq!(
        deployments.split_whitespace().collect::<Vec<_>>(),
        ["liqo-controller-manager=True", "liqo-crd-replicator=True", "liqo-webhook=True"],
    );
    let id = of_liqo(&["get", "configmap", "liqo-clusterid-configmap", "-o", "jsonpath={.data.CLUSTER_ID}"]);
    assert_eq!(cluster.kubectl(&id).await.unwrap(), cluster.liqo_id().unwrap());
    let template = of_liqo(&["get", "vkoptionstemplates", "-o", "jsonpath={.items[*].spec.extraArgs}"]);
    let template = cluster.kubectl(&template).await.unwrap();
    assert!(template.contains(&format!("--local-podcidr={}", cluster.pod_cidr())), "{template}");

    // Its controllers and its webhook work.
    cluster.kubectl_with_input(&["apply", "-f", "-"], TENANT).await.unwrap();
    let nonce = ["-n", "liqo-tenant-somebody", "get", "secret", "liqo-nonce", "-o", "jsonpath={.data.nonce}"];
    until(cluster, &nonce, |text| text.len() > 60).await;
    let refused = cluster.kubectl_with_input(&["create", "-f", "-"], MISNAMED).await.unwrap_err().to_string();
    assert!(refused.contains("denied the request: NamespaceOffloading name must match offloading"), "{refused}");
}

/// Whether the donor's API server answers within two seconds, seen from the origin's node.
async fn donor_answers(clusters: &RealClusters, binaries: &Binaries) -> bool {
    let kubeconfig = format!("--kubeconfig={}", clusters.donor.admin_kubeconfig_path().display());
    let args = [&kubeconfig, "--request-timeout=2s", "get", "--raw", "/readyz"];
    clusters.command_in(Where::Origin, &binaries.program("kubectl"), &args).output().await.unwrap().status.success()
}

/// Of 200 echo requests from the origin's node to the donor's: how many were answered, and the least milliseconds of
/// one.
async fn ping(clusters: &RealClusters, binaries: &Binaries) -> (u32, u32) {
    let args = ["ping", "-count", "200", "-every", "5ms", clusters.donor.node_ip()];
    let output = clusters.command_in(Where::Origin, &binaries.program("line"), &args).output().await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let figure = |name: &str| {
        let word = said.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.unwrap_or_else(|| panic!("no {name} in {said:?}: {output:?}", output = output.stderr)).parse().unwrap()
    };
    (figure("answered"), figure("least_ms"))
}

/// Delay and loss affect each direction, and end.
async fn the_line_is_impaired(clusters: &RealClusters, binaries: &Binaries) {
    assert_eq!(ping(clusters, binaries).await.0, 200);
    let impaired = |delay, loss_percent| Line::Impaired {
        delay: Duration::from_millis(delay),
        jitter: Duration::from_millis(10),
        loss_percent,
    };
    clusters.set_line(impaired(50, 10.0)).await.unwrap();
    let (answered, least) = ping(clusters, binaries).await;
    // 162 of 200 come both ways, with a standard deviation of 5.5.
    assert!((130..194).contains(&answered), "{answered} of 200 were answered");
    assert!((100..150).contains(&least), "{least} ms for 50 ms each way");
    // Lost packets are sent again seconds later, so one of several tries is in time.
    let mut answered = false;
    for _ in 0..8 {
        answered = answered || donor_answers(clusters, binaries).await;
    }
    assert!(answered, "none of eight requests was answered");
    // Another replaces it; an invalid one does not harm the line.
    clusters.set_line(impaired(5, 0.0)).await.unwrap();
    let (answered, least) = ping(clusters, binaries).await;
    assert_eq!(answered, 200);
    assert!((10..60).contains(&least), "{least} ms for 5 ms each way");
    let refused = clusters.set_line(impaired(5, 101.0)).await.unwrap_err().to_string();
    assert!(refused.contains("-loss is 101: give a percentage, 0 to 100"), "{refused}");
    clusters.set_line(Line::Whole).await.unwrap();
    let (answered, least) = ping(clusters, binaries).await;
    assert_eq!(answered, 200);
    assert!(least < 5, "{least} ms over the whole line");
}

#[tokio::test]
async fn liqo_and_dns_run_in_both_clusters() {
    if !requirements::met("liqo_and_dns_run_in_both_clusters", &RealClusters::missing()) {
        return;
    }
    let _turn = turn().await;
    let binaries = Binaries::ensure(Needs::Liqo).await.unwrap();
    let config = RealClustersConfig {
        dns: true,
        liqo: Some(LiqoConfig::default()),
        origin_node_grace: Duration::from_secs(50),
        ..RealClustersConfig::default()
    };
    let began = Instant::now();
    let clusters = RealClusters::start(&binaries, config).await.unwrap();
    eprintln!("both clusters ready with Liqo after {:.1} s", began.elapsed().as_secs_f32());
    for cluster in [&clusters.origin, &clusters.donor] {
        liqo_runs(cluster).await;
        pods_resolve_and_reach_services(cluster).await;
        let grace = cluster.exec_in_node(&["cat", "/run/pids/kube-controller-manager.cmd"]).await.unwrap();
        assert!(grace.contains("--node-monitor-grace-period=50s"), "{grace}");
        // The host reaches it by a port of its own.
        let kubeconfig = format!("--kubeconfig={}", cluster.host_kubeconfig_path().display());
        let mut kubectl = std::process::Command::new(binaries.program("kubectl"));
        let answer = kubectl.args([&kubeconfig, "get", "nodes", "-o", "name"]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&answer.stdout).trim(),
            format!("node/{}", cluster.node_name()),
            "{answer:?}"
        );
    }

    // The other side notices a cut line and a dead API server, and both recover.
    assert!(donor_answers(&clusters, &binaries).await);
    clusters.set_line(Line::Cut).await.unwrap();
    assert!(!donor_answers(&clusters, &binaries).await, "the line is cut");
    clusters.set_line(Line::Whole).await.unwrap();
    assert!(donor_answers(&clusters, &binaries).await, "the line is back");
    the_line_is_impaired(&clusters, &binaries).await;
    clusters.kill_api_server(Where::Donor).await.unwrap();
    assert!(!donor_answers(&clusters, &binaries).await, "the API server is dead");
    clusters.start_api_server(Where::Donor).await.unwrap();
    assert!(donor_answers(&clusters, &binaries).await, "the API server is back");

    let (dir, own) = (clusters.dir().to_owned(), networks(clusters.dir()));
    clusters.stop().await.unwrap();
    assert_eq!(left(&dir, &own), BTreeSet::new());
}
