//! An unmodified Job of a cluster without GPUs runs on another institution's GPUs, through Liqo and the broker's
//! handshake.

use std::time::{Duration, Instant};

use comity_scenarios::burst::{Burst, BurstConfig, DONOR, NAMESPACE, ORIGIN};
use comity_scenarios::{PATIENCE, until};
use comity_testkit::{Line, RealClusters, Where, requirements};

use crate::{OrLogs as _, is_long};

/// All parts share one pair of clusters, because its start takes half a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes of its own: ./test long runs it"]
async fn an_untouched_job_runs_on_another_institutions_gpus_and_gives_them_back() {
    if !requirements::met("a burst through Liqo", &RealClusters::missing()) {
        return;
    }
    let mut burst = Burst::start(&BurstConfig::default()).await.unwrap();
    // Services before the Jobs' pods.
    burst.serve(&["train", "steady", "far"]).await.unwrap();
    an_untouched_job(&burst).await;
    a_request_by_kubectl(&burst).await;
    the_leader_and_both_agents_killed_on_the_way(&mut burst).await;
    the_line_cut_the_donors_api_dead_and_no_broker(&mut burst).await;
    teardown_in_wrong_orders(&burst).await;
    over_a_line_with_delay_and_loss(&burst).await;

    // Nothing is left behind.
    let federation = burst.federation();
    let lent = federation.comity_as("admin", &["cluster", "show", DONOR]).await.or_logs(federation);
    assert_eq!(lent["lentMilli"], 0, "{lent}");
    burst.nothing_left().await.or_logs(federation);
    burst.stop().await.unwrap();
}

async fn an_untouched_job(burst: &Burst) {
    let federation = burst.federation();
    // It runs for more than three terms of its lease, which is renewed while it does.
    let origin = &burst.clusters.origin;
    origin.kubectl(&["annotate", "namespace", NAMESPACE, "comity.dev/duration=18s"]).await.unwrap();
    let cold = burst.run_job("train", 2, &["serve", "58"]).await.or_logs(federation);
    println!("cold:\n{cold}");
    let long = only_lease(burst).await.or_logs(federation);
    origin.kubectl(&["annotate", "namespace", NAMESPACE, "comity.dev/duration-"]).await.unwrap();
    // A lease that nobody uses is not.
    submit_gpu_request(burst, "unused", "15s").await;

    // It sees exactly its devices.
    let log = burst.log("train").await.or_logs(federation);
    assert_eq!(log.lines().filter(|line| line.starts_with("device=")).count(), 2, "{log}");
    // It answers the origin's pods over the fabric, by the Service's name.
    let answer = until("the Service to answer", PATIENCE, async || Ok(Some(burst.ask("train").await?)))
        .await
        .or_logs(federation);
    assert!(answer.contains("device="), "{answer}");
    // The user reads its log and runs commands in it from the origin.
    let pod = origin.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", "app=train", "-o", "name"]).await.unwrap();
    let inside =
        origin.kubectl(&["-n", NAMESPACE, "exec", pod.trim(), "--", "/probe", "env"]).await.or_logs(federation);
    assert!(inside.contains("NVIDIA_VISIBLE_DEVICES"), "{inside}");

    // On the warm peering a second one is quicker.
    let warm = burst.run_job("again", 1, &["see"]).await.or_logs(federation);
    println!("on a warm peering:\n{warm}");
    burst.complete("again").await.or_logs(federation);
    the_owner_of_an_unused_lease_is_warned(burst).await;
    burst.complete("train").await.or_logs(federation);
    // The leases go back by themselves.
    burst.no_lease().await.or_logs(federation);
    let ended = federation.comity(&["lease", "show", &long]).await.or_logs(federation);
    let of = |field: &str| ended[field].as_u64().unwrap_or_default();
    let (held, term) = (of("endedAtMs").saturating_sub(of("activeAtMs")), of("termMs"));
    println!("{long} was held for {held} ms in terms of {term} ms");
    assert!(ended["endReason"] == "released" && term == 18_000 && held >= 3 * term, "{ended}");
}

/// The id of the only lease.
async fn only_lease(burst: &Burst) -> anyhow::Result<String> {
    let leases = burst.federation().comity(&["lease", "list"]).await?;
    let [lease] = leases["items"].as_array().map(Vec::as_slice).unwrap_or_default() else {
        anyhow::bail!("not one lease: {leases}")
    };
    Ok(lease["id"].as_str().unwrap_or_default().to_owned())
}

async fn submit_gpu_request(burst: &Burst, name: &str, duration: &str) {
    let object = format!(
        r#"{{"apiVersion": "comity.dev/v1alpha1", "kind": "GpuRequest", "metadata": {{"name": "{name}", "namespace": "{NAMESPACE}"}},
            "spec": {{"gpus": 1, "class": "midrange", "duration": "{duration}"}}}}"#
    );
    burst.clusters.origin.kubectl_with_input(&["apply", "-f", "-"], &object).await.unwrap();
}

/// An event on its GpuLease announces the end, and then the lease ends.
async fn the_owner_of_an_unused_lease_is_warned(burst: &Burst) {
    let (federation, origin) = (burst.federation(), &burst.clusters.origin);
    let events = ["-n", NAMESPACE, "get", "events", "--field-selector", "reason=ComityLeaseEnds", "-o", "json"];
    let warned = until("the warning", PATIENCE, async || {
        let list: serde_json::Value = serde_json::from_str(&origin.kubectl(&events).await?)?;
        let event =
            list["items"].as_array().into_iter().flatten().find(|event| event["involvedObject"]["kind"] == "GpuLease");
        Ok(event.map(|event| event["message"].as_str().unwrap_or_default().to_owned()))
    })
    .await
    .or_logs(federation);
    assert!(warned.contains("to keep it, comity lease renew lease-"), "{warned}");
    println!("{warned}");
    let state = ["-n", NAMESPACE, "get", "gpurequest", "unused", "-o", "jsonpath={.status.state}"];
    until("the unused lease to end", PATIENCE, async || {
        let seen = origin.kubectl(&state).await?;
        anyhow::ensure!(seen == "Completed", "its GpuRequest is {seen}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    origin.kubectl(&["-n", NAMESPACE, "delete", "gpurequest", "unused", "--timeout=120s"]).await.or_logs(federation);
}

/// Requests a lease by `kubectl apply` of a GpuRequest, and releases it by deleting that.
async fn a_request_by_kubectl(burst: &Burst) {
    let federation = burst.federation();
    let origin = &burst.clusters.origin;
    submit_gpu_request(burst, "nightly", "1h").await;
    let state = ["-n", NAMESPACE, "get", "gpurequest", "nightly", "-o", "jsonpath={.status.state} {.status.donor}"];
    until("the GpuRequest to be active", PATIENCE, async || {
        let seen = origin.kubectl(&state).await?;
        anyhow::ensure!(seen == format!("Active {DONOR}"), "it is {seen:?}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    // A Job of the namespace uses its lease like any other.
    burst.submit_job("by-night", 1, &["see"]).await.unwrap();
    burst.complete("by-night").await.or_logs(federation);
    origin.kubectl(&["-n", NAMESPACE, "delete", "gpurequest", "nightly", "--timeout=120s"]).await.or_logs(federation);
    burst.no_lease().await.or_logs(federation);
}

async fn the_leader_and_both_agents_killed_on_the_way(burst: &mut Burst) {
    burst.submit_job("stubborn", 1, &["see"]).await.unwrap();
    let federation = burst.federation_mut();
    until("the Job's lease", PATIENCE, async || {
        let leases = federation.comity(&["lease", "list"]).await?;
        Ok(leases["items"].as_array().filter(|items| !items.is_empty()).map(|_| ()))
    })
    .await
    .or_logs(federation);
    let leader = federation.leader().await.or_logs(federation);
    federation.kill_broker(leader).await.unwrap();
    for cluster in [ORIGIN, DONOR] {
        federation.kill_agent(cluster).await.unwrap();
        federation.start_agent(cluster).unwrap();
    }
    let federation = burst.federation();
    burst.complete("stubborn").await.or_logs(federation);
    burst.federation_mut().start_broker(leader).unwrap();
    let federation = burst.federation();
    burst.no_lease().await.or_logs(federation);
}

/// Duration of the outage of all brokers.
fn brokers_away() -> Duration {
    Duration::from_secs(if is_long() { 600 } else { 20 })
}

/// A command of an administrator, and the cluster on which it is given.
type Act = (Where, &'static [&'static str]);

/// Deletes Liqo's objects while a pod runs, in an order from which Liqo alone does not recover.
const WRONG_ORDERS: [(&str, &[Act]); 4] = [
    (
        "the donor deletes the Tenant first",
        &[(Where::Donor, &["delete", "tenants.authentication.liqo.io", "--all", "-A", "--wait=false"])],
    ),
    (
        "the origin deletes the Identities first",
        &[(Where::Origin, &["delete", "identities.authentication.liqo.io", "--all", "-A", "--wait=false"])],
    ),
    (
        "the donor deletes its replicas of slices and namespaces",
        &[
            (Where::Donor, &["delete", "resourceslices.authentication.liqo.io", "--all", "-A", "--wait=false"]),
            (Where::Donor, &["delete", "namespacemaps.offloading.liqo.io", "--all", "-A", "--wait=false"]),
        ],
    ),
    (
        "the Tenant goes, then the Identities",
        &[
            (Where::Donor, &["delete", "tenants.authentication.liqo.io", "--all", "-A", "--wait=false"]),
            (Where::Origin, &["delete", "identities.authentication.liqo.io", "--all", "-A", "--wait=false"]),
        ],
    ),
];

/// Both sides end clean in whatever order Liqo's objects are deleted.
async fn teardown_in_wrong_orders(burst: &Burst) {
    let federation = burst.federation();
    let orders = if is_long() { &WRONG_ORDERS[..] } else { &WRONG_ORDERS[..1] };
    for (number, (what, acts)) in orders.iter().enumerate() {
        let job = format!("wrong-{number}");
        burst.run_job(&job, 1, &["serve", "1800"]).await.or_logs(federation);
        for (place, args) in *acts {
            let cluster = if *place == Where::Donor { &burst.clusters.donor } else { &burst.clusters.origin };
            cluster.kubectl(args).await.unwrap();
        }
        let began = Instant::now();
        // The pod may be gone by then, and with it the reason for the lease.
        let delete = ["-n", NAMESPACE, "delete", "job", &job, "--wait=false"];
        burst.clusters.origin.kubectl(&delete).await.or_logs(federation);
        burst.no_lease().await.or_logs(federation);
        let returned = began.elapsed();
        federation.no_peering(PATIENCE).await.or_logs(federation);
        burst.nothing_left().await.or_logs(federation);
        println!("{what}: lease returned after {returned:.1?}, both sides clean after {:.1?}", began.elapsed());
    }
}

/// A bad connection between distant institutions: a round trip of 80 to 100 ms, and 4 % of the packets need a retry.
const FAR: Line =
    Line::Impaired { delay: Duration::from_millis(40), jitter: Duration::from_millis(10), loss_percent: 2.0 };

/// A whole life cycle of a peering works over a bad network, only slower.
async fn over_a_line_with_delay_and_loss(burst: &Burst) {
    let federation = burst.federation();
    burst.clusters.set_line(FAR).await.unwrap();
    let cold = burst.run_job("far", 2, &["serve", "1800"]).await.or_logs(federation);
    println!("over a line of 40 to 50 ms and 2 % loss each way, cold:\n{cold}");
    let answered = Instant::now();
    let answer = until("the Service to answer", PATIENCE, async || Ok(Some(burst.ask("far").await?)));
    assert_eq!(answer.await.or_logs(federation).lines().filter(|line| line.starts_with("device=")).count(), 2);
    println!("{:>7} ms  the Service to answer over that line", answered.elapsed().as_millis());
    let warm = burst.run_job("farther", 1, &["see"]).await.or_logs(federation);
    println!("on a warm peering:\n{warm}");
    burst.complete("farther").await.or_logs(federation);
    let before = burst.container("far").await.or_logs(federation);
    assert!(before.ends_with(" 0"), "{before}");

    let began = Instant::now();
    let delete = ["-n", NAMESPACE, "delete", "job", "far", "--timeout=120s"];
    burst.clusters.origin.kubectl(&delete).await.or_logs(federation);
    burst.no_lease().await.or_logs(federation);
    federation.no_peering(PATIENCE).await.or_logs(federation);
    burst.nothing_left().await.or_logs(federation);
    println!("{:>7} ms  both sides to be clean over that line", began.elapsed().as_millis());
    burst.clusters.set_line(Line::Whole).await.unwrap();
}

/// Time within which the origin's Service answers again.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

/// The container survives all faults, even the loss of all brokers, and the origin's Service soon answers again.
async fn the_line_cut_the_donors_api_dead_and_no_broker(burst: &mut Burst) {
    async fn answers(burst: &Burst, what: &str) {
        let back = Instant::now();
        until(what, PATIENCE, async || Ok(Some(burst.ask("steady").await?))).await.or_logs(burst.federation());
        let took = back.elapsed();
        println!("{:>7} ms  {what}", took.as_millis());
        assert!(took <= ANSWERS_WITHIN, "it took {took:.1?} for {what}");
    }
    burst.run_job("steady", 1, &["serve", "1800"]).await.or_logs(burst.federation());
    answers(burst, "the Service to answer at first").await;
    let before = burst.container("steady").await.unwrap();

    burst.clusters.set_line(Line::Cut).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    burst.clusters.set_line(Line::Whole).await.unwrap();
    answers(burst, "the Service to answer after a cut of 30 s").await;

    // The line degrades while it is used, and recovers: the tunnel and its connections continue.
    burst.clusters.set_line(FAR).await.unwrap();
    answers(burst, "the Service to answer over a line of 40 to 50 ms and 2 % loss each way").await;
    let used = if is_long() { 60 } else { 10 };
    tokio::time::sleep(Duration::from_secs(used)).await;
    answers(burst, &format!("the Service to answer over that line {used} s later")).await;
    burst.clusters.set_line(Line::Whole).await.unwrap();
    answers(burst, "the Service to answer over the whole line").await;

    burst.clusters.kill_api_server(Where::Donor).await.unwrap();
    // Twice, because the first outage is too short for the node to become not ready. Both stay within the donor's own
    // grace period: after a longer outage its controllers mark its nodes as not ready and the pods as unready, until the
    // kubelet reports again.
    for (wait, seconds) in [(20, "20 s"), (10, "30 s")] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        answers(burst, &format!("the Service to answer while the donor's API server is dead, for {seconds}")).await;
    }
    burst.clusters.start_api_server(Where::Donor).await.unwrap();
    answers(burst, "the Service to answer after that").await;

    let away = brokers_away();
    for broker in 1..=3 {
        burst.federation_mut().kill_broker(broker).await.unwrap();
    }
    tokio::time::sleep(away).await;
    answers(burst, &format!("the Service to answer after {} s without any broker", away.as_secs())).await;
    assert_eq!(burst.container("steady").await.unwrap(), before, "the container was started again");
    assert!(before.ends_with(" 0"), "{before}");
    for broker in 1..=3 {
        burst.federation_mut().start_broker(broker).unwrap();
    }

    // The lease still ends as usual.
    let federation = burst.federation();
    let delete = ["-n", NAMESPACE, "delete", "job", "steady", "--timeout=120s"];
    burst.clusters.origin.kubectl(&delete).await.or_logs(federation);
    burst.no_lease().await.or_logs(federation);
}
