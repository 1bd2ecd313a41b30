//! An untouched Job of a cluster without GPUs runs on another institution's, through Liqo and the broker's handshake.

use comity_scenarios::burst::{Burst, BurstConfig, DONOR, NAMESPACE};
use comity_scenarios::{PATIENCE, until};
use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{RealClusters, requirements};

use crate::OrLogs as _;

/// A Service before the Job's pods, and a client that has nothing to do with GPUs.
fn service_and_client() -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "List", "items": [
  {{"apiVersion": "v1", "kind": "Service", "metadata": {{"name": "train", "namespace": "{NAMESPACE}"}},
    "spec": {{"selector": {{"app": "train"}}, "ports": [{{"port": 80, "targetPort": 8080}}]}}}},
  {{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "client", "namespace": "{NAMESPACE}"}},
    "spec": {{"containers": [{{"name": "work", "image": "{PROBE_IMAGE}", "imagePullPolicy": "IfNotPresent"}}]}}}}]}}"#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untouched_job_runs_on_another_institutions_gpus_and_gives_them_back() {
    if !requirements::met("a burst through Liqo", &RealClusters::missing()) {
        return;
    }
    let burst = Burst::start(&BurstConfig::default()).await.unwrap();
    let federation = burst.federation();
    burst.clusters.origin.kubectl_with_input(&["apply", "-f", "-"], &service_and_client()).await.unwrap();
    let cold = burst.run_job("train", 2, &["serve", "45"]).await.or_logs(federation);
    println!("cold:\n{cold}");

    // It sees exactly its devices.
    let log = burst.log("train").await.or_logs(federation);
    assert_eq!(log.lines().filter(|line| line.starts_with("device=")).count(), 2, "{log}");
    // It answers the origin's pods over the fabric, by the Service's name.
    let origin = &burst.clusters.origin;
    let get = ["-n", NAMESPACE, "exec", "client", "--", "/probe", "get", "http://train.team-a.svc.cluster.local/"];
    let answer = until("the Service to answer", PATIENCE, async || Ok(Some(origin.kubectl(&get).await?)))
        .await
        .or_logs(federation);
    assert!(answer.contains("device="), "{answer}");
    // A person looks into it from home.
    let pod = origin.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", "app=train", "-o", "name"]).await.unwrap();
    let inside =
        origin.kubectl(&["-n", NAMESPACE, "exec", pod.trim(), "--", "/probe", "env"]).await.or_logs(federation);
    assert!(inside.contains("NVIDIA_VISIBLE_DEVICES"), "{inside}");

    // On the warm peering a second one is quicker.
    let warm = burst.run_job("again", 1, &["see"]).await.or_logs(federation);
    println!("on a warm peering:\n{warm}");
    burst.complete("again").await.or_logs(federation);
    burst.complete("train").await.or_logs(federation);

    // The leases go back by themselves, and nothing of them is left.
    burst.no_lease().await.or_logs(federation);
    let lent = federation.comity_as("admin", &["cluster", "show", DONOR]).await.or_logs(federation);
    assert_eq!(lent["lentMilli"], 0, "{lent}");
    burst.nothing_left().await.or_logs(federation);
    burst.stop().await.unwrap();
}
