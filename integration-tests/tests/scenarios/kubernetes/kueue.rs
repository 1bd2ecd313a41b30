//! Jobs in a queue of a real Kueue wait for leases, start on them, and give them back.

use comity_scenarios::burst::{Burst, BurstConfig, DONOR, NAMESPACE};
use comity_scenarios::{PATIENCE, until};
use comity_testkit::{RealClusters, requirements};
use serde_json::Value;

use crate::OrLogs as _;

const QUEUE: &str = include_str!("../../../../deploy/examples/kueue/queue.yaml");
const JOB: &str = include_str!("../../../../deploy/examples/kueue/job.yaml");
/// The queue's own GPUs in the example; here there are none.
const OWN_GPUS: &str = "{name: nvidia.com/gpu, nominalQuota: \"8\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes of its own: ./test long runs it"]
async fn jobs_of_a_queue_start_on_leases_and_give_them_back() {
    if !requirements::met("Kueue beside a burst", &RealClusters::missing()) {
        return;
    }
    let burst = Burst::start(&BurstConfig { with_kueue: true, ..BurstConfig::default() }).await.unwrap();
    assert!(QUEUE.contains(OWN_GPUS));
    let queue = QUEUE.replace(OWN_GPUS, "{name: nvidia.com/gpu, nominalQuota: \"0\"}");
    burst.clusters.origin.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &queue).await.unwrap();
    until("the queue to be active", PATIENCE, async || {
        let queue = get(&burst, "", "clusterqueue", "gpus").await?;
        anyhow::ensure!(condition(&queue, "Active") == Some("True"), "{}", queue["status"]);
        Ok(Some(()))
    })
    .await
    .or_logs(burst.federation());
    // The example's image is the reader's own: the API server and Kueue's webhooks only review it.
    let dry = ["apply", "--dry-run=server", "-f", "-"];
    burst.clusters.origin.kubectl_with_input(&dry, JOB).await.or_logs(burst.federation());
    a_job_runs_and_its_lease_goes_back(&burst).await;
    a_second_one_waits_and_says_why(&burst).await;
    a_cancelled_lease_is_revoked(&burst).await;
    a_deleted_gpu_request_is_asked_for_again(&burst).await;
    an_evicted_job_gives_its_lease_back(&burst).await;
    what_no_lease_serves_is_refused(&burst).await;
    burst.nothing_left().await.or_logs(burst.federation());
    burst.stop().await.unwrap();
}

async fn a_job_runs_and_its_lease_goes_back(burst: &Burst) {
    let federation = burst.federation();
    submit(burst, "train", 2, &["see"], &[("duration", "30m")]).await;
    burst.complete("train").await.or_logs(federation);
    let log = burst.log("train").await.or_logs(federation);
    assert_eq!(log.lines().filter(|line| line.starts_with("device=")).count(), 2, "{log}");
    let request = provisioning_request(burst, "train").await.or_logs(federation);
    let lease = request["status"]["provisioningClassDetails"]["comity.dev/lease"].as_str().unwrap_or_default();
    assert!(condition(&request, "Provisioned") == Some("True") && lease.starts_with("lease-"), "{request}");
    // The Job is still there.
    burst.no_lease().await.or_logs(federation);
    let ended = federation.comity(&["lease", "show", lease]).await.or_logs(federation);
    assert!(ended["termMs"] == 1_800_000 && ended["gpus"]["count"] == 2, "{ended}");
}

/// The donor has four GPUs.
async fn a_second_one_waits_and_says_why(burst: &Burst) {
    let federation = burst.federation();
    burst.serve(&["holds"]).await.unwrap();
    submit(burst, "holds", 3, &["serve", "600"], &[]).await;
    running(burst, "holds").await;
    submit(burst, "waits", 2, &["see"], &[]).await;
    let message = until("the waiting Job to say why", PATIENCE, async || {
        let request = provisioning_request(burst, "waits").await?;
        anyhow::ensure!(condition(&request, "Provisioned") == Some("False"), "{request}");
        let workload = workload(burst, "waits").await?;
        let check = workload["status"]["admissionChecks"][0].clone();
        let message = check["message"].as_str().unwrap_or_default().to_owned();
        anyhow::ensure!(message.contains(DONOR) && message.contains("expected by"), "{check}");
        Ok(Some(message))
    })
    .await
    .or_logs(federation);
    println!("waiting: {message}");
    burst.end("holds").await.or_logs(federation);
    burst.complete("waits").await.or_logs(federation);
    burst.no_lease().await.or_logs(federation);
}

async fn a_cancelled_lease_is_revoked(burst: &Burst) {
    let federation = burst.federation();
    submit(burst, "revoked", 1, &["serve", "600"], &[]).await;
    running(burst, "revoked").await;
    let object = gpu_request(burst, "revoked").await.or_logs(federation);
    let id = object["status"]["request"].as_str().unwrap_or_default();
    federation.comity_as("bruno", &["request", "cancel", id, "--yes"]).await.or_logs(federation);
    until("the Workload to be deactivated", PATIENCE, async || {
        let workload = workload(burst, "revoked").await?;
        anyhow::ensure!(workload["spec"]["active"] == false, "{}", workload["status"]);
        let job = get(burst, NAMESPACE, "job", "revoked").await?;
        anyhow::ensure!(job["spec"]["suspend"] == true, "{}", job["spec"]);
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    delete(burst, "revoked").await;
}

async fn a_deleted_gpu_request_is_asked_for_again(burst: &Burst) {
    let federation = burst.federation();
    submit(burst, "again", 1, &["serve", "600"], &[]).await;
    running(burst, "again").await;
    let first = gpu_request(burst, "again").await.or_logs(federation);
    let name = first["metadata"]["name"].as_str().unwrap_or_default();
    burst
        .clusters
        .origin
        .kubectl(&["-n", NAMESPACE, "delete", "gpurequest", name, "--timeout=120s"])
        .await
        .or_logs(federation);
    until("the Job to run on another lease", PATIENCE, async || {
        let next = gpu_request(burst, "again").await?;
        anyhow::ensure!(next["metadata"]["name"] != name, "{next}");
        let job = get(burst, NAMESPACE, "job", "again").await?;
        anyhow::ensure!(job["status"]["active"] == 1, "{}", job["status"]);
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    delete(burst, "again").await;
}

async fn an_evicted_job_gives_its_lease_back(burst: &Burst) {
    let federation = burst.federation();
    submit(burst, "evicted", 1, &["serve", "600"], &[]).await;
    running(burst, "evicted").await;
    let found = workload(burst, "evicted").await.or_logs(federation);
    let name = found["metadata"]["name"].as_str().unwrap_or_default();
    let kind = "workloads.kueue.x-k8s.io";
    let patch = |active: bool| format!("{{\"spec\": {{\"active\": {active}}}}}");
    let origin = &burst.clusters.origin;
    let set = async |active: bool| {
        let patch = patch(active);
        let args = ["-n", NAMESPACE, "patch", kind, name, "--type=merge", "-p", &patch];
        origin.kubectl(&args).await.or_logs(federation);
    };
    set(false).await;
    burst.no_lease().await.or_logs(federation);
    let gone = provisioning_request(burst, "evicted").await;
    assert!(gone.is_err(), "{gone:?}");
    // It was not revoked: it runs again.
    set(true).await;
    running(burst, "evicted").await;
    delete(burst, "evicted").await;
}

async fn what_no_lease_serves_is_refused(burst: &Burst) {
    let federation = burst.federation();
    submit(burst, "odd", 1, &["see"], &[("max-price", "3")]).await;
    until("the reason to be told", PATIENCE, async || {
        let request = provisioning_request(burst, "odd").await?;
        let failed = conditions(&request).find(|one| one["type"] == "Failed").map(|one| one["message"].to_string());
        let said = failed.unwrap_or_default();
        anyhow::ensure!(said.contains("comity.dev.max-price is unknown"), "{request}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    delete(burst, "odd").await;
}

/// A Job in the queue, with parameters of its own.
async fn submit(burst: &Burst, name: &str, gpus: u32, args: &[&str], parameters: &[(&str, &str)]) {
    let mut job: Value = serde_json::from_str(&Burst::job(name, gpus, args)).unwrap();
    // The default of Kubernetes: with none a Job fails with its first lost node.
    job["spec"]["backoffLimit"] = 6.into();
    job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpus".into();
    for (key, value) in parameters {
        job["metadata"]["annotations"][format!("provreq.kueue.x-k8s.io/comity.dev.{key}")] = (*value).into();
    }
    burst.clusters.origin.kubectl_with_input(&["apply", "-f", "-"], &job.to_string()).await.or_logs(burst.federation());
}

async fn running(burst: &Burst, job: &str) {
    until("the Job to run", PATIENCE, async || {
        let job = get(burst, NAMESPACE, "job", job).await?;
        anyhow::ensure!(job["status"]["ready"] == 1, "{}", job["status"]);
        Ok(Some(()))
    })
    .await
    .or_logs(burst.federation());
}

async fn delete(burst: &Burst, job: &str) {
    let federation = burst.federation();
    burst.clusters.origin.kubectl(&["-n", NAMESPACE, "delete", "job", job, "--timeout=120s"]).await.or_logs(federation);
    burst.no_lease().await.or_logs(federation);
}

async fn get(burst: &Burst, namespace: &str, kind: &str, name: &str) -> anyhow::Result<Value> {
    let at = if namespace.is_empty() { Vec::new() } else { vec!["-n", namespace] };
    let text = burst.clusters.origin.kubectl(&[&at[..], &["get", kind, name, "-o", "json"]].concat()).await?;
    Ok(serde_json::from_str(&text)?)
}

/// The newest object of a kind that Kueue, or the agent for it, made for a Job.
async fn newest_of(burst: &Burst, kind: &str, job: &str) -> anyhow::Result<Value> {
    let text = burst.clusters.origin.kubectl(&["-n", NAMESPACE, "get", kind, "-o", "json"]).await?;
    let list: Value = serde_json::from_str(&text)?;
    let prefix = format!("job-{job}-");
    let is_its = |object: &&Value| object["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&prefix));
    let found = list["items"].as_array().into_iter().flatten().filter(is_its);
    let newest = found.max_by_key(|object| object["metadata"]["creationTimestamp"].as_str().map(str::to_owned));
    newest.cloned().ok_or_else(|| anyhow::anyhow!("no {kind} of Job {job}"))
}

async fn workload(burst: &Burst, job: &str) -> anyhow::Result<Value> {
    newest_of(burst, "workloads.kueue.x-k8s.io", job).await
}

async fn provisioning_request(burst: &Burst, job: &str) -> anyhow::Result<Value> {
    newest_of(burst, "provisioningrequests.autoscaling.x-k8s.io", job).await
}

async fn gpu_request(burst: &Burst, job: &str) -> anyhow::Result<Value> {
    newest_of(burst, "gpurequests.comity.dev", job).await
}

fn conditions(object: &Value) -> impl Iterator<Item = &Value> {
    object["status"]["conditions"].as_array().into_iter().flatten()
}

fn condition<'o>(object: &'o Value, type_: &str) -> Option<&'o str> {
    conditions(object).find(|one| one["type"] == type_)?["status"].as_str()
}
