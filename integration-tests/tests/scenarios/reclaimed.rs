//! A Job's lease is reclaimed: its pod is notified on both clusters, reports saved work, and continues later.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use comity_scenarios::burst::{Burst, BurstConfig, DONOR, NAMESPACE, copy_policy};
use comity_scenarios::{FederationConfig, PATIENCE, until};
use comity_testkit::{RealClusters, requirements};
use serde_json::Value;

use crate::OrLogs as _;

/// Notice that the donor gives, `reclaimGrace` in the example policy.
const NOTICE: Duration = Duration::from_secs(300);
const JOB: &str = "careful";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_lease_is_reclaimed_is_told_answers_and_goes_on() {
    if !requirements::met("a reclaim through Liqo", &RealClusters::missing()) {
        return;
    }
    let burst = Burst::start(&BurstConfig::default()).await.unwrap();
    let federation = burst.federation();
    let policies = tempfile::tempdir().unwrap();
    let (open, shut) = (policies.path().join("open"), policies.path().join("shut"));
    for folder in [&open, &shut] {
        std::fs::create_dir(folder).unwrap();
        copy_policy(&FederationConfig::with_example_policy().policy, folder, "20s").unwrap();
    }
    lend_no_midrange(&shut).unwrap();

    burst.clusters.origin.kubectl_with_input(&["apply", "-f", "-"], &job()).await.unwrap();
    let pod = running(&burst, "").await.or_logs(federation);
    let lease = burst.lease_on(pod["spec"]["nodeName"].as_str().unwrap()).await.or_logs(federation);
    let (lease, request) = (lease["id"].as_str().unwrap(), lease["request"].as_str().unwrap());
    let asked = federation.comity(&["request", "show", request]).await.or_logs(federation);
    assert_eq!(asked["spec"]["preemptible"]["graceMs"], 120_000, "{asked}");

    let began = Instant::now();
    apply(&burst, &shut).await.or_logs(federation);
    it_is_told(&burst, &pod, lease).await.or_logs(federation);
    println!("{:>7} ms  both sides' pods say that {lease} is being reclaimed", began.elapsed().as_millis());

    let name = pod["metadata"]["name"].as_str().unwrap();
    let answer = ["-n", NAMESPACE, "annotate", "pod", name, "comity.dev/checkpointed=true"];
    burst.clusters.origin.kubectl(&answer).await.unwrap();
    until("the lease to end", PATIENCE, async || {
        let seen = federation.comity(&["lease", "show", lease]).await?;
        ensure!(seen["state"] == "ended" && seen["endReason"] == "reclaimed", "{seen}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    assert!(began.elapsed() < NOTICE, "it ended by its answer, not by its deadline");
    println!("{:>7} ms  it has ended", began.elapsed().as_millis());

    // Nobody lends such a GPU, so the Job's next pod waits for the same request.
    until("the next pod to wait", PATIENCE, async || {
        let next = pods(&burst).await?.into_iter().find(|next| next["metadata"]["uid"] != pod["metadata"]["uid"]);
        let next = next.context("there is none yet")?;
        let waits_for = &next["metadata"]["annotations"]["comity.dev/request"];
        ensure!(*waits_for == request, "it waits for {waits_for}");
        let state = federation.comity(&["request", "show", request]).await?["state"].clone();
        ensure!(state == "queued", "{request} is {state}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);

    apply(&burst, &open).await.or_logs(federation);
    let next = running(&burst, pod["metadata"]["uid"].as_str().unwrap()).await.or_logs(federation);
    let on = burst.lease_on(next["spec"]["nodeName"].as_str().unwrap()).await.or_logs(federation);
    assert_eq!(on["request"], request, "{on}");
    assert_ne!(on["id"], lease, "{on}");
    println!("{:>7} ms  its work continues", began.elapsed().as_millis());

    let delete = ["-n", NAMESPACE, "delete", "job", JOB, "--timeout=120s"];
    burst.clusters.origin.kubectl(&delete).await.or_logs(federation);
    burst.no_lease().await.or_logs(federation);
    federation.no_peering(PATIENCE).await.or_logs(federation);
    burst.nothing_left().await.or_logs(federation);
    burst.stop().await.unwrap();
}

/// A preemptible Job whose pod may be recreated.
fn job() -> String {
    let plain: Value = serde_json::from_str(&Burst::job(JOB, 1, &["serve", "1800"])).unwrap();
    let mut job = plain;
    job["spec"]["backoffLimit"] = 6.into();
    job["spec"]["template"]["metadata"]["annotations"] =
        serde_json::json!({ "comity.dev/preemptible-grace": "2m", "comity.dev/preemptible-checkpoint": "true" });
    job.to_string()
}

/// Removes the class of the donor's devices from its lending terms.
fn lend_no_midrange(policy: &Path) -> Result<()> {
    let path = policy.join(format!("clusters/{DONOR}.yaml"));
    let text = std::fs::read_to_string(&path)?;
    let changed = text.replace("classes: [midrange, teaching]", "classes: [teaching]");
    ensure!(changed != text, "{} says something else now", path.display());
    Ok(std::fs::write(&path, changed)?)
}

async fn apply(burst: &Burst, policy: &Path) -> Result<()> {
    let policy = policy.to_str().context("paths of tests are text")?;
    burst.federation().comity_as("admin", &["policy", "apply", "--yes", policy]).await.map(drop)
}

async fn pods(burst: &Burst) -> Result<Vec<Value>> {
    let selector = format!("job-name={JOB}");
    let list = burst.clusters.origin.kubectl(&["-n", NAMESPACE, "get", "pods", "-l", &selector, "-o", "json"]).await?;
    let list: Value = serde_json::from_str(&list)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// The Job's pod that runs, and is not the one with that UID.
async fn running(burst: &Burst, but_not: &str) -> Result<Value> {
    until("the Job's pod to run", PATIENCE, async || {
        let runs = |pod: &Value| pod["status"]["phase"] == "Running" && pod["metadata"]["uid"] != but_not;
        Ok(pods(burst).await?.into_iter().find(runs))
    })
    .await
}

/// The origin's pod, the donor's, an event and the GpuLease all say so.
async fn it_is_told(burst: &Burst, pod: &Value, lease: &str) -> Result<()> {
    let (origin, donor) = (&burst.clusters.origin, &burst.clusters.donor);
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let here = ["-n", NAMESPACE, "get", "pod", name, "-o", "json"];
    let there = ["get", "pods", "-A", "-l", "liqo.io/managed-by=shadowpod", "-o", "json"];
    let at = until("the pod to be annotated", PATIENCE, async || {
        let pod: Value = serde_json::from_str(&origin.kubectl(&here).await?)?;
        let annotations = &pod["metadata"]["annotations"];
        ensure!(annotations["comity.dev/reclaim-reason"] == "policy-changed", "it says {annotations}");
        Ok(annotations["comity.dev/reclaim-at"].as_str().map(str::to_owned))
    })
    .await?;
    until("Liqo to carry the annotation over", PATIENCE, async || {
        let list: Value = serde_json::from_str(&donor.kubectl(&there).await?)?;
        let shadow = list["items"].as_array().into_iter().flatten().find(|pod| pod["metadata"]["name"] == name);
        let annotations = &shadow.context("the donor has no such pod")?["metadata"]["annotations"];
        ensure!(annotations["comity.dev/reclaim-at"] == at.as_str(), "it says {annotations}");
        Ok(Some(()))
    })
    .await?;
    let reasons = ["-n", NAMESPACE, "get", "events", "-o", "jsonpath={.items[*].reason}"];
    until("the event", PATIENCE, async || {
        let seen = origin.kubectl(&reasons).await?;
        Ok(seen.split(' ').any(|reason| reason == "ComityReclaim").then_some(()))
    })
    .await?;
    let shown = ["-n", NAMESPACE, "get", "gpulease", lease, "-o", "jsonpath={.status.state} {.status.reclaimAt}"];
    until("the GpuLease to say so", PATIENCE, async || {
        let seen = origin.kubectl(&shown).await?;
        ensure!(seen == format!("Reclaiming {at}"), "it says {seen}");
        Ok(Some(()))
    })
    .await
}
