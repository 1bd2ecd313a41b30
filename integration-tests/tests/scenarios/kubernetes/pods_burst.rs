//! An unmodified Job bursts through Liqo while brokers and agents run as pods, with only the rights of the released
//! manifests, even while the agents' pods are deleted.

use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use comity_scenarios::burst::{DONOR, NAMESPACE};
use comity_scenarios::pods::{AGENT_NAMESPACE, Pods, agent_rolled_out};
use comity_scenarios::{PATIENCE, until};
use comity_testkit::{RealClusters, requirements};

use crate::pods::{GATEWAY, held, kill_the_agents, or_logs};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_untouched_job_bursts_while_brokers_and_agents_are_pods() {
    if !requirements::met("a burst through Liqo with brokers and agents as pods", &RealClusters::missing()) {
        return;
    }
    let began = Instant::now();
    let said = |what: &str| println!("{:>7} ms  {what}", began.elapsed().as_millis());
    let pods = Pods::start_beside_liqo().await.unwrap();
    said("three brokers and both agents are connected, as pods beside Liqo");
    let RealClusters { origin, donor, .. } = pods.clusters();
    for real in [origin, donor] {
        assert_eq!(held(real, "comity-agent", &pods).await, [GATEWAY]);
        or_logs(real.kubectl(&["-n", AGENT_NAMESPACE, "delete", "secret", "comity-agent-join"]).await, &pods).await;
    }
    or_logs(pods.burst.serve(&["train", "stubborn"]).await, &pods).await;

    let cold = or_logs(pods.burst.run_job("train", 2, &["serve", "3600"]).await, &pods).await;
    println!("cold:\n{cold}");
    it_was_gated_by_the_webhook(&pods).await;
    it_is_reached_from_home(&pods).await;
    let before = or_logs(pods.burst.container("train").await, &pods).await;
    its_metrics_are_seen_at_home(&pods).await;
    metrics_are_told_to_nobody_else(&pods).await;
    said("kubectl top shows the container at home");

    nothing_was_forbidden(&pods).await;

    // Deleted gracefully, as by an upgrade of the image.
    for real in [origin, donor] {
        let delete = ["-n", AGENT_NAMESPACE, "delete", "pod", "--selector=app.kubernetes.io/name=comity-agent"];
        or_logs(real.kubectl(&delete).await, &pods).await;
    }
    it_is_reached_from_home(&pods).await;
    said("both agents' pods were deleted: the container is reached again");
    for real in [origin, donor] {
        or_logs(agent_rolled_out(real).await, &pods).await;
    }

    nothing_was_forbidden(&pods).await;

    // Killed while a second Job's lease is being set up.
    or_logs(pods.burst.submit_job("stubborn", 1, &["serve", "3600"]).await, &pods).await;
    let placed = until("the Job's lease", PATIENCE, async || {
        let leases = pods.federation().comity(&["lease", "list"]).await?;
        ensure!(leases["items"].as_array().is_some_and(|items| items.len() == 2), "{leases}");
        Ok(Some(()))
    });
    or_logs(placed.await, &pods).await;
    kill_the_agents(&pods).await;
    answers("stubborn", &pods).await;
    it_is_reached_from_home(&pods).await;
    said("both were killed while the next lease was set up: its container runs, and the first is reached again");
    assert_eq!(or_logs(pods.burst.container("train").await, &pods).await, before, "the container was started again");
    assert!(before.ends_with(" 0"), "{before}");

    for job in ["stubborn", "train"] {
        or_logs(pods.burst.end(job).await, &pods).await;
        or_logs(pods.burst.complete(job).await, &pods).await;
    }
    or_logs(pods.burst.no_lease().await, &pods).await;
    or_logs(pods.federation().no_peering(PATIENCE).await, &pods).await;
    or_logs(pods.burst.nothing_left().await, &pods).await;
    let lent = or_logs(pods.federation().comity_as("admin", &["cluster", "show", DONOR]).await, &pods).await;
    assert_eq!(lent["lentMilli"], 0, "{lent}");
    said("the Jobs are complete, the leases have ended, and nothing of them is left");
    nothing_was_forbidden(&pods).await;
    pods.stop().await.unwrap();
}

/// The API server called the agent by its Service.
async fn it_was_gated_by_the_webhook(pods: &Pods) {
    let origin = &pods.clusters().origin;
    let label = "jsonpath={.items[*].metadata.labels.comity\\.dev/burst}";
    let gated = origin.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", "app=train", "-o", label]).await;
    assert_eq!(or_logs(gated, pods).await, "true");
}

/// It answers on the origin by the Service's name, `kubectl logs` and `kubectl exec`, and has exactly its devices.
async fn it_is_reached_from_home(pods: &Pods) {
    let answer = answers("train", pods).await;
    assert_eq!(answer.lines().filter(|line| line.starts_with("device=")).count(), 2, "{answer}");
    let reached = until("kubectl to reach the container", PATIENCE, async || {
        let log = pods.burst.log("train").await?;
        ensure!(log.lines().filter(|line| line.starts_with("device=")).count() >= 2, "{log}");
        let exec = ["-n", NAMESPACE, "exec", "job/train", "--", "/probe", "env"];
        let inside = pods.clusters().origin.kubectl(&exec).await?;
        ensure!(inside.contains("NVIDIA_VISIBLE_DEVICES"), "{inside}");
        Ok(Some(()))
    });
    or_logs(reached.await, pods).await;
}

/// `kubectl top` on the origin shows what the container uses on the donor.
async fn its_metrics_are_seen_at_home(pods: &Pods) {
    let origin = &pods.clusters().origin;
    let seen = until("kubectl top to show the pod", PATIENCE, async || {
        let top = origin.kubectl(&["-n", NAMESPACE, "top", "pod", "-l", "app=train", "--no-headers"]).await?;
        let [name, cpu, memory] = *top.split_whitespace().collect::<Vec<_>>() else { anyhow::bail!("{top:?}") };
        ensure!(name.starts_with("train-") && cpu.ends_with('m') && memory.ends_with("Mi"), "{top}");
        ensure!(memory != "0Mi", "{top}");
        Ok(Some(top))
    });
    println!("{}", or_logs(seen.await, pods).await.trim());
}

/// The metrics are refused to users without a slice, and to direct connections.
async fn metrics_are_told_to_nobody_else(pods: &Pods) {
    let donor = &pods.clusters().donor;
    let path = "/apis/metrics.liqo.io/v1beta1/scrape/origin/metrics/resource";
    let refused = donor.kubectl(&["get", "--raw", path]).await.expect_err("an administrator has no slice");
    assert!(refused.to_string().contains("no lease in force is this user's"), "{refused}");
    // A direct client has no certificate of the API server.
    let server = format!("--server=https://{}:7484", donor.node_ip());
    let direct = ["get", "--raw", path, &server, "--insecure-skip-tls-verify"];
    let refused = donor.kubectl_as(Path::new("/dev/null"), &direct, "").await.expect_err("it shows no certificate");
    let refused = refused.to_string();
    // The end of the connection may come before its reason.
    assert!(refused.contains("certificate") || refused.contains("EOF"), "{refused}");
}

async fn answers(service: &str, pods: &Pods) -> String {
    let answer = until("the Service to answer", PATIENCE, async || Ok(Some(pods.burst.ask(service).await?)));
    or_logs(answer.await, pods).await
}

/// The released manifests grant all rights that the agents need: no log has a denied request.
async fn nothing_was_forbidden(pods: &Pods) {
    for real in [&pods.clusters().origin, &pods.clusters().donor] {
        let log = or_logs(real.kubectl(&["-n", AGENT_NAMESPACE, "logs", "deployment/comity-agent"]).await, pods).await;
        let refused: Vec<_> = log.lines().filter(|line| line.to_lowercase().contains("forbidden")).collect();
        assert!(refused.is_empty(), "{}: {refused:#?}", real.name());
    }
}
