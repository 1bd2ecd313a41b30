//! `comity-bench agent`: the cost of an agent on a large cluster.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::arguments::whole::whole;
use anyhow::{Context as _, Result, ensure};
use comity_scenarios::{
    AgentSpec, Federation, FederationConfig, InventorySource, apply_admission, memory, processor_time, until,
};
use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, Needs, SimulatedNode};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

/// A donor of the example policy.
const CLUSTER: &str = "ncc-main";
/// The user of the agent's kubeconfig. Only the agent uses it, so the audit log counts the agent's requests alone.
const AGENT_USER: &str = "comity-bench-agent";
/// GPUs of each GPU node.
const GPUS_PER_GPU_NODE: u32 = 8;
/// One node in four has GPUs, and one pod in four takes one.
const GPU_NODE_EVERY: u32 = 4;
/// Concurrent pod creations or deletions.
const CONCURRENT_POD_CALLS: usize = 32;
/// Pods created, and deleted, per second while the cluster is busy.
const PODS_PER_SECOND: u32 = 10;

#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// Simulated nodes; one in four has eight GPUs
    #[arg(long, default_value_t = 1_000, value_parser = whole::<u32>(4..=5_000))]
    nodes: u32,
    /// Running pods; one in four takes a GPU while any is free
    #[arg(long, default_value_t = 10_000, value_parser = whole::<u32>(0..=50_000))]
    pods: u32,
    /// Seconds of measurement at rest, and again while pods come and go
    #[arg(long, default_value_t = 60, value_parser = whole::<u32>(5..=3_600))]
    seconds: u32,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Resource use of the agent since its start.
struct Usage {
    processor_time: Duration,
    requests: BTreeMap<String, u64>,
    at: Instant,
}

/// Resource use of the agent between two measurements.
struct Cost {
    /// Percent of one core.
    cpu_percent: f64,
    requests_per_second: f64,
    /// Number of requests by verb and resource.
    requests: BTreeMap<String, u64>,
    resident_bytes: u64,
}

/// Measures and prints.
///
/// # Errors
/// When a process does not start.
pub(crate) async fn run(arguments: &AgentArgs) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let binaries = Binaries::ensure(Needs::ControlPlane).await?;
    let mut config = ControlPlaneConfig::new("large", folder.path().join("large"));
    config.nodes = (0..arguments.nodes).map(node).collect();
    config.patience = Duration::from_secs(600);
    config.audited_user = Some(AGENT_USER.to_owned());
    eprintln!("{} simulated nodes", arguments.nodes);
    let cluster = ControlPlane::start(&binaries, config).await?;
    apply_admission(&cluster).await?;
    let api = Api::<Pod>::namespaced(cluster.client(), "default");
    eprintln!("{} pods", arguments.pods);
    make_pods(&api, 0..arguments.pods, arguments.nodes).await?;
    all_run(&api).await?;

    let mut federation =
        Federation::start(FederationConfig { brokers: 1, ..FederationConfig::with_example_policy() }).await?;
    let kubeconfig = cluster.kubeconfig_for(AGENT_USER, "system:masters")?;
    eprintln!("the agent starts");
    let began = Instant::now();
    federation.join(AgentSpec::new(CLUSTER, InventorySource::Kubernetes(kubeconfig))).await?;
    federation.all_connected().await?;
    let devices = u64::from(arguments.nodes.div_ceil(GPU_NODE_EVERY) * GPUS_PER_GPU_NODE);
    until("the agent to offer the cluster", Duration::from_secs(300), async || {
        let seen = federation.comity_as("admin", &["cluster", "show", CLUSTER]).await?;
        Ok((seen["devices"].as_u64() == Some(devices)).then_some(()))
    })
    .await?;
    let offered_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let pid = federation.agent_pid(CLUSTER).context("the agent runs")?;
    let window = Duration::from_secs(arguments.seconds.into());
    // Lets the work of the start finish.
    tokio::time::sleep(Duration::from_secs(10)).await;

    eprintln!("at rest, {} s", arguments.seconds);
    let before = usage(pid, &cluster)?;
    let start_requests: u64 = before.requests.values().sum();
    ensure!(start_requests > 0, "the audit log has no request of {AGENT_USER}, so none can be counted");
    tokio::time::sleep(window).await;
    let rest = cost(pid, &cluster, &before)?;

    eprintln!("{PODS_PER_SECOND} pods a second come and go, {} s", arguments.seconds);
    let before = usage(pid, &cluster)?;
    for second in 0..arguments.seconds {
        let next = tokio::time::Instant::now() + Duration::from_secs(1);
        let first = arguments.pods + second * PODS_PER_SECOND;
        make_pods(&api, first..first + PODS_PER_SECOND, arguments.nodes).await?;
        remove_pods(&api, first.saturating_sub(PODS_PER_SECOND).max(arguments.pods)..first).await?;
        tokio::time::sleep_until(next).await;
    }
    let busy = cost(pid, &cluster, &before)?;
    let peak = memory(pid, "VmHWM")?;
    drop(federation);
    cluster.stop().await?;
    print(arguments, &Start { offered_ms, requests: start_requests }, peak, &rest, &busy);
    Ok(())
}

/// Cost of the agent's start.
struct Start {
    offered_ms: u64,
    requests: u64,
}

fn print(arguments: &AgentArgs, start: &Start, peak: u64, rest: &Cost, busy: &Cost) {
    if arguments.json {
        let part = |cost: &Cost| {
            json!({
                "resident_bytes": cost.resident_bytes,
                "cpu_percent": hundredths(cost.cpu_percent),
                "requests_per_second": hundredths(cost.requests_per_second),
                "requests": cost.requests,
            })
        };
        let result = json!({
            "nodes": arguments.nodes, "pods": arguments.pods, "seconds": arguments.seconds,
            "first_offer_ms": start.offered_ms, "start_requests": start.requests, "peak_resident_bytes": peak,
            "rest": part(rest), "busy": part(busy),
        });
        println!("{result}");
        return;
    }
    println!("{:<34}{:>12}{:>12}", format!("{} nodes, {} pods", arguments.nodes, arguments.pods), "at rest", "busy");
    let mib = |bytes: u64| bytes as f64 / f64::from(1_u32 << 20);
    println!("{:<34}{:>12.1}{:>12.1}", "resident, MiB", mib(rest.resident_bytes), mib(busy.resident_bytes));
    println!("{:<34}{:>12.2}{:>12.2}", "of one core, %", rest.cpu_percent, busy.cpu_percent);
    println!(
        "{:<34}{:>12.2}{:>12.2}",
        "requests to the API server, 1/s", rest.requests_per_second, busy.requests_per_second
    );
    println!("{:<34}{:>12.1}", "most resident, MiB", mib(peak));
    println!("{:<34}{:>12}", "first offer after its start, ms", start.offered_ms);
    println!("{:<34}{:>12}", "requests of the start", start.requests);
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn node(number: u32) -> SimulatedNode {
    let name = format!("node-{number}");
    if number.is_multiple_of(GPU_NODE_EVERY) {
        SimulatedNode::h100(&name, GPUS_PER_GPU_NODE)
    } else {
        SimulatedNode::without_gpus(&name)
    }
}

/// A pod already bound to its node, so that Kubernetes' scheduler does not affect the measurement.
fn pod(number: u32, nodes: u32) -> Result<Pod> {
    let node = number % nodes;
    let has_gpu = node.is_multiple_of(GPU_NODE_EVERY) && number / nodes < GPUS_PER_GPU_NODE;
    let mut limits = json!({ "cpu": "500m", "memory": "512Mi" });
    if has_gpu {
        limits["nvidia.com/gpu"] = json!("1");
    }
    Ok(serde_json::from_value(json!({
        "metadata": { "name": format!("pod-{number}"), "labels": { "app": "bench" } },
        "spec": {
            "nodeName": format!("node-{node}"), "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "work", "image": "registry.example/work:1", "resources": { "limits": limits } }],
        },
    }))?)
}

async fn make_pods(api: &Api<Pod>, numbers: std::ops::Range<u32>, nodes: u32) -> Result<()> {
    futures::stream::iter(numbers)
        .map(|number| async move {
            let made = api.create(&PostParams::default(), &pod(number, nodes)?).await;
            made.map(drop).with_context(|| format!("create pod-{number}"))
        })
        .buffer_unordered(CONCURRENT_POD_CALLS)
        .try_collect()
        .await
}

/// Waits until every pod runs: each start is a watch event, which must not fall into the measurement.
async fn all_run(api: &Api<Pod>) -> Result<()> {
    until("all pods to run", Duration::from_secs(600), async || {
        let others = ListParams::default().fields("status.phase!=Running").limit(1);
        Ok(api.list_metadata(&others).await?.items.is_empty().then_some(()))
    })
    .await
}

async fn remove_pods(api: &Api<Pod>, numbers: std::ops::Range<u32>) -> Result<()> {
    futures::stream::iter(numbers)
        .map(|number| async move {
            let removed = api.delete(&format!("pod-{number}"), &DeleteParams::default()).await;
            removed.map(drop).with_context(|| format!("delete pod-{number}"))
        })
        .buffer_unordered(CONCURRENT_POD_CALLS)
        .try_collect()
        .await
}

fn usage(pid: u32, cluster: &ControlPlane) -> Result<Usage> {
    Ok(Usage { processor_time: processor_time(pid)?, requests: requests(&cluster.audit_log())?, at: Instant::now() })
}

fn cost(pid: u32, cluster: &ControlPlane, before: &Usage) -> Result<Cost> {
    let now = usage(pid, cluster)?;
    let seconds = (now.at - before.at).as_secs_f64();
    let since = |(what, count): (String, u64)| {
        let count = count - before.requests.get(&what).copied().unwrap_or_default();
        (count > 0).then_some((what, count))
    };
    let requests: BTreeMap<String, u64> = now.requests.into_iter().filter_map(since).collect();
    Ok(Cost {
        cpu_percent: (now.processor_time - before.processor_time).as_secs_f64() / seconds * 100.0,
        requests_per_second: requests.values().sum::<u64>() as f64 / seconds,
        requests,
        resident_bytes: memory(pid, "VmRSS")?,
    })
}

/// Requests of the audited user so far, by verb and resource.
fn requests(audit_log: &Path) -> Result<BTreeMap<String, u64>> {
    let mut requests = BTreeMap::new();
    let text = match fs::read_to_string(audit_log) {
        // The API server creates the file with the first event.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    // The last line may be incomplete.
    for event in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let verb = event["verb"].as_str().unwrap_or("?");
        let what = event["objectRef"]["resource"].as_str().or_else(|| event["requestURI"].as_str()).unwrap_or("?");
        *requests.entry(format!("{verb} {what}")).or_default() += 1;
    }
    Ok(requests)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_verb_and_resource() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("audit.log");
        assert!(requests(&log).unwrap().is_empty());
        let event = |verb: &str| format!("{{\"verb\":\"{verb}\",\"objectRef\":{{\"resource\":\"pods\"}}}}\n");
        fs::write(&log, [event("get"), event("get"), event("watch"), "{\"verb\":".to_owned()].concat()).unwrap();
        let counted = requests(&log).unwrap();
        assert_eq!(counted, BTreeMap::from([("get pods".to_owned(), 2), ("watch pods".to_owned(), 1)]));
    }

    #[test]
    fn a_quarter_of_the_nodes_has_gpus_and_no_more_are_taken_than_there_are() {
        assert_eq!((0..8).map(|number| node(number).gpus).collect::<Vec<_>>(), [8, 0, 0, 0, 8, 0, 0, 0]);
        let gpus = |number: u32| {
            let pod = pod(number, 4).unwrap();
            pod.spec.unwrap().containers[0].resources.clone().unwrap().limits.unwrap().contains_key("nvidia.com/gpu")
        };
        assert_eq!((0..100).filter(|number| gpus(*number)).count(), GPUS_PER_GPU_NODE as usize);
    }
}
