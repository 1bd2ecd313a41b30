//! A Job's lease is reclaimed because a pod of its donor waits for the GPU: the Job's pod is notified, saves its work to a
//! volume of the origin and ends, the donor's pod runs, and the Job's next pod continues at another donor from the last
//! step.
//!
//! The Job, and the S3 server in front of the volume, are the example in docs/examples/checkpoint.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use comity_scenarios::burst::{
    Burst, BurstConfig, CHECKPOINT_SECRET, DONOR, NAMESPACE, SECOND_DONOR, add_checkpoint_bucket, copy_policy,
};
use comity_scenarios::{FederationConfig, PATIENCE, Process, Seen, Watch, until};
use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{PYTHON_IMAGE, RealCluster, RealClusters, Where, requirements};
use serde_json::{Value, json};

use crate::OrLogs as _;

/// The shortest notice that a donor gives, `reclaimGrace` in the example policy.
const NOTICE: Duration = Duration::from_secs(300);
/// The Job in docs/examples/checkpoint/job.yaml.
const JOB: &str = "train";
/// The donors' only GPU is the one that the lease takes.
const GPUS: u32 = 1;
/// A pod that waits for a leased GPU counts as local use after a second instead of a minute.
const RECLAIM_FOR_PENDING: &str = "sharing:\n  alwaysPullImages: false\n  reclaimForPending: {afterSeconds: 1}\n";
/// The donor's pod that needs the GPU.
const LOCAL_WORK: &str = "local-work";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_donor_needs_its_gpu_saves_its_work_and_goes_on_at_another() {
    let missing = [RealClusters::missing(), comity_testkit::missing_for_python_image()].concat();
    if !requirements::met("a reclaim through Liqo", &missing) {
        return;
    }
    let config = BurstConfig {
        donor_gpus: GPUS,
        second_donor_gpus: GPUS,
        donor_sections: RECLAIM_FOR_PENDING,
        ..BurstConfig::default()
    };
    let burst = Burst::start(&config).await.unwrap();
    let federation = burst.federation();
    reserve_nothing(&burst).await.or_logs(federation);
    let volume = add_checkpoint_bucket(&burst).await.or_logs(federation);
    submit(&burst).await.or_logs(federation);

    let pod = running(&burst, "").await.or_logs(federation);
    let log = Followed::start(&burst, &pod).unwrap();
    log.wait_for("a step", |line| line.step().is_some_and(|step| step > 5)).await.or_logs(federation);
    let first = lease_of(&burst, &pod).await.or_logs(federation);
    let (lease, request) = (first["id"].as_str().unwrap(), first["request"].as_str().unwrap());
    let asked = federation.comity(&["request", "show", request]).await.or_logs(federation);
    assert_eq!(asked["spec"]["preemptible"]["graceMs"], 120_000, "{asked}");
    let (donor, cluster) = donor_of(&burst, &first).unwrap();

    let notices = Notices::start(&burst).or_logs(federation);
    let began = Instant::now();
    need_a_gpu(cluster).await.or_logs(federation);
    notices.given(&burst, &pod, lease).await.or_logs(federation);
    println!("{:>7} ms  the origin's pod says that {lease} at {donor} is being reclaimed", began.elapsed().as_millis());
    log.wait_for("the end of the lease", |line| line.text == "the lease is being reclaimed").await.or_logs(federation);
    log.wait_for("a checkpoint", |line| line.saved().is_some() && line.saved() == log.last_step())
        .await
        .or_logs(federation);
    println!("{:>7} ms  it has read the notice and saved its work", began.elapsed().as_millis());
    until("the lease to end", PATIENCE, async || {
        let seen = federation.comity(&["lease", "show", lease]).await?;
        ensure!(seen["state"] == "ended" && seen["endReason"] == "reclaimed", "{seen}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    assert!(began.elapsed() < NOTICE, "it ended because its work was saved, not at its deadline");
    println!("{:>7} ms  the lease has ended", began.elapsed().as_millis());
    assert!(volume.join("train.pt").is_file(), "the checkpoint is in the volume of the origin's claim");

    let runs = ["-n", "default", "wait", "--for=condition=Ready", "pod", LOCAL_WORK, "--timeout=100s"];
    cluster.kubectl(&runs).await.or_logs(federation);
    println!("{:>7} ms  the donor's pod runs", began.elapsed().as_millis());
    let next = running(&burst, pod["metadata"]["uid"].as_str().unwrap()).await.or_logs(federation);
    let second = lease_of(&burst, &next).await.or_logs(federation);
    let (other, _) = donor_of(&burst, &second).unwrap();
    assert_ne!(other, donor, "{second}");
    assert_eq!((&second["request"], &second["movedFrom"]), (&first["request"], &first["id"]), "{second}");
    let next_log = Followed::start(&burst, &next).unwrap();
    let went_on = next_log.wait_for("a step", |line| line.step().is_some()).await.or_logs(federation);
    println!("{:>7} ms  its work continues at {other}", began.elapsed().as_millis());
    let saved = log.lines().iter().rev().find_map(Line::saved).unwrap();
    let continued = next_log.lines().iter().find_map(Line::continued).unwrap();
    let before = log.lines().into_iter().rfind(|line| line.step().is_some()).unwrap();
    assert_eq!((continued, went_on.step()), (saved, Some(saved + 1)), "it goes on from the last step saved");
    assert_eq!(before.step(), Some(saved), "no step was lost");
    println!(
        "step {saved} at {donor}, step {} at {other}; no step lost, {} ms without work",
        saved + 1,
        went_on.at_ms - before.at_ms
    );

    let delete = ["-n", NAMESPACE, "delete", "job", JOB, "--timeout=120s"];
    burst.clusters.origin.kubectl(&delete).await.or_logs(federation);
    // A namespace that opted out gives the lease back at once. Otherwise a moved lease is kept for a minute.
    burst.clusters.origin.kubectl(&["label", "namespace", NAMESPACE, "comity.dev/offload-"]).await.or_logs(federation);
    burst.no_lease().await.or_logs(federation);
    federation.no_peering(PATIENCE).await.or_logs(federation);
    burst.nothing_left().await.or_logs(federation);
    burst.stop().await.unwrap();
}

/// Sets the terms of both donors so that they lend their only GPU.
async fn reserve_nothing(burst: &Burst) -> Result<()> {
    let dir = tempfile::tempdir()?;
    copy_policy(&FederationConfig::with_example_policy().policy, dir.path(), "20s")?;
    for donor in [DONOR, SECOND_DONOR] {
        let path = dir.path().join(format!("clusters/{donor}.yaml"));
        let text = std::fs::read_to_string(&path)?;
        let lines = text.lines().filter(|line| !line.contains("localReserveGpus:")).map(|line| format!("{line}\n"));
        std::fs::write(&path, lines.collect::<String>())?;
    }
    let policy = dir.path().to_str().context("paths of tests are text")?;
    burst.federation().comity_as("admin", &["policy", "apply", "--yes", policy]).await.map(drop)
}

/// Creates the example's Job, whose image is the host's Python here.
async fn submit(burst: &Burst) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (files, archive) = (dir.path().join("files"), dir.path().join("python.tar"));
    std::fs::create_dir(&files)?;
    comity_testkit::write_python_image(&files, &archive)?;
    for (_, donor) in burst.donors() {
        donor.import_image(&archive).await?;
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/checkpoint");
    let file = |name: &str| format!("--from-file={}", example.join(name).display());
    let program = ["-n", NAMESPACE, "create", "configmap", JOB, &file("train.py"), &file("store.py")];
    burst.clusters.origin.kubectl(&program).await?;
    let to_donors = ["-n", NAMESPACE, "annotate", "configmap", JOB, "liqo.io/allow-reflection=true"];
    burst.clusters.origin.kubectl(&to_donors).await?;
    let job = std::fs::read_to_string(example.join("job.yaml"))?;
    let image = job.lines().find_map(|line| line.trim().strip_prefix("image: ")).context("the Job has an image")?;
    ensure!(job.contains(&format!("comity.dev/checkpoint-secret: {CHECKPOINT_SECRET}")), "{job}");
    let job = job.replace(image, PYTHON_IMAGE);
    burst.clusters.origin.kubectl_with_input(&["apply", "-f", "-"], &job).await?;
    Ok(())
}

/// Makes the donor need the GPU of the lease: a pod of its own waits for it.
async fn need_a_gpu(donor: &RealCluster) -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": LOCAL_WORK, "namespace": "default"},
        "spec": {"containers": [{
            "name": "work", "image": PROBE_IMAGE, "imagePullPolicy": "IfNotPresent", "args": ["serve", "1800"],
            "resources": {"limits": {"cpu": "100m", "memory": "64Mi", "nvidia.com/gpu": 1}},
        }]},
    });
    donor.kubectl_with_input(&["apply", "-f", "-"], &pod.to_string()).await?;
    Ok(())
}

/// The donor of a lease: its name in the policy, and its cluster.
fn donor_of<'a>(burst: &'a Burst, lease: &Value) -> Result<(&'static str, &'a RealCluster)> {
    let mut donors = burst.donors();
    donors.find(|(donor, _)| lease["placement"]["donor"] == *donor).with_context(|| format!("{lease}"))
}

async fn lease_of(burst: &Burst, pod: &Value) -> Result<Value> {
    burst.lease_on(pod["spec"]["nodeName"].as_str().context("the pod has a node")?).await
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
        let pods = pods(burst).await?;
        let runs = |pod: &&Value| pod["status"]["phase"] == "Running" && pod["metadata"]["uid"] != but_not;
        if let Some(pod) = pods.iter().find(runs) {
            return Ok(Some(pod.clone()));
        }
        let events = burst.clusters.origin.kubectl(&["-n", NAMESPACE, "get", "events"]).await?;
        bail!("{events}")
    })
    .await
}

/// What the origin shows of a reclaim, recorded because it is gone soon after the workload has answered.
struct Notices {
    pods: Watch,
    leases: Watch,
}

impl Notices {
    fn start(burst: &Burst) -> Result<Self> {
        let watch = |kind: &str| burst.watch_origin(&[kind, "-n", NAMESPACE]);
        Ok(Self { pods: watch("pods")?, leases: watch("gpuleases")? })
    }

    /// Waits until the pod, the GpuLease and an event say that the lease is being reclaimed.
    async fn given(&self, burst: &Burst, pod: &Value, lease: &str) -> Result<()> {
        let uid = &pod["metadata"]["uid"];
        let at = |pod: &Value| pod["metadata"]["annotations"]["comity.dev/reclaim-at"].as_str().map(str::to_owned);
        let is_told = |seen: &Seen| seen.object["metadata"]["uid"] == *uid && at(&seen.object).is_some();
        let told = self.pods.first("the pod to be annotated", PATIENCE, is_told).await?.object;
        let annotations = &told["metadata"]["annotations"];
        ensure!(annotations["comity.dev/reclaim-reason"] == "local-need", "it says {annotations}");
        let is_shown = |seen: &Seen| {
            let status = &seen.object["status"];
            let is_reclaimed = status["state"] == "Reclaiming" && status["reclaimAt"].as_str() == at(&told).as_deref();
            seen.object["metadata"]["name"] == lease && is_reclaimed
        };
        self.leases.first("the GpuLease to say so", PATIENCE, is_shown).await?;
        let reasons = ["-n", NAMESPACE, "get", "events", "-o", "jsonpath={.items[*].reason}"];
        until("the event", PATIENCE, async || {
            let seen = burst.clusters.origin.kubectl(&reasons).await?;
            Ok(seen.split(' ').any(|reason| reason == "ComityReclaim").then_some(()))
        })
        .await
    }
}

/// A pod's log, which `kubectl logs --follow` reads on the origin.
struct Followed {
    path: PathBuf,
    _dir: tempfile::TempDir,
    _kubectl: Process,
}

impl Followed {
    fn start(burst: &Burst, pod: &Value) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("pod.log");
        let kubeconfig = burst.clusters.origin.admin_kubeconfig_path();
        let name = pod["metadata"]["name"].as_str().context("a pod has a name")?;
        let kubeconfig = kubeconfig.to_str().context("paths of tests are text")?;
        let words = ["--kubeconfig", kubeconfig, "-n", NAMESPACE, "logs", "--follow", name];
        let command = burst.clusters.command_in(Where::Origin, &burst.binaries.program("kubectl"), &words);
        Ok(Self { _kubectl: Process::start("kubectl logs", command, &path)?, path, _dir: dir })
    }

    fn lines(&self) -> Vec<Line> {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().filter_map(Line::of).collect()
    }

    fn last_step(&self) -> Option<u64> {
        self.lines().iter().rev().find_map(Line::step)
    }

    /// The first line for which `wanted` holds.
    async fn wait_for(&self, what: &str, wanted: impl Fn(&Line) -> bool) -> Result<Line> {
        until(&format!("{what} in the pod's log"), PATIENCE, async || {
            let found = self.lines().into_iter().find(|line| wanted(line));
            if found.is_none() {
                let text = std::fs::read_to_string(&self.path)?;
                bail!("it ends with {}", text.get(text.len().saturating_sub(500)..).unwrap_or(&text));
            }
            Ok(found)
        })
        .await
    }
}

/// A line of the example's log: when, and the text.
struct Line {
    at_ms: u64,
    text: String,
}

impl Line {
    fn of(line: &str) -> Option<Self> {
        let (at_ms, text) = line.split_once(' ')?;
        Some(Self { at_ms: at_ms.parse().ok()?, text: text.to_owned() })
    }

    fn number(&self, prefix: &str) -> Option<u64> {
        self.text.strip_prefix(prefix)?.split(' ').next()?.parse().ok()
    }

    /// The step that was made.
    fn step(&self) -> Option<u64> {
        self.number("step ")
    }

    /// The last step in a checkpoint that was written.
    fn saved(&self) -> Option<u64> {
        self.number("saved step ")
    }

    /// The last step in the checkpoint that was read.
    fn continued(&self) -> Option<u64> {
        self.number("continues after step ")
    }
}
