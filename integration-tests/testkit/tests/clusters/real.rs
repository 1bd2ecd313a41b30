//! Two clusters with real kubelets and containers.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{Binaries, Needs, RealCluster, RealClusters, RealClustersConfig, Where, requirements};
use tokio::sync::{Mutex, MutexGuard};

use crate::left_behind::{owner, processes_of, wait_until_gone};

/// One pair at a time: several at once fit on a machine, but two cores make every one of them slow.
pub(crate) async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

pub(crate) fn pod(name: &str, gpus: u32) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {{runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: main
    image: {PROBE_IMAGE}
    imagePullPolicy: Never
    securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}, readOnlyRootFilesystem: true}}
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"
    )
}

/// The GPUs and the device nodes that a container says it sees.
fn seen(log: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let gpus = log.lines().find_map(|line| line.strip_prefix("NVIDIA_VISIBLE_DEVICES=")).unwrap_or_default();
    let devices = log.lines().filter_map(|line| line.strip_prefix("device="));
    (gpus.split(',').map(str::to_owned).collect(), devices.map(str::to_owned).collect())
}

/// Leftovers of the clusters in `dir`: processes, cgroups, processes in their networks, mounts, files.
pub(crate) fn left(dir: &Path, networks: &BTreeSet<String>) -> BTreeSet<String> {
    let id = dir.file_name().unwrap().to_str().unwrap();
    let mut left = processes_of(dir.to_str().unwrap());
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
    for hierarchy in hierarchies.chain([Path::new("/sys/fs/cgroup").to_owned()]) {
        let cgroup = hierarchy.join(format!("comity-{id}"));
        if cgroup.exists() {
            left.insert(format!("cgroup {}", cgroup.display()));
        }
    }
    for process in std::fs::read_dir("/proc").unwrap() {
        let process = process.unwrap().path();
        if network_of(&process).is_some_and(|network| networks.contains(&network)) {
            left.insert(format!("{} in a network of the clusters", process.display()));
        }
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    left.extend(mounts.lines().filter(|line| line.contains(dir.to_str().unwrap())).map(str::to_owned));
    if dir.exists() {
        left.insert(format!("folder {}", dir.display()));
    }
    left
}

fn network_of(process: &Path) -> Option<String> {
    Some(std::fs::read_link(process.join("ns/net")).ok()?.to_string_lossy().into_owned())
}

/// The networks of the processes that the pid files in `dir` name.
pub(crate) fn networks(dir: &Path) -> BTreeSet<String> {
    let parts = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path().join("init.pid"));
    parts
        .filter(|file| file.exists())
        .map(|file| {
            let pid = std::fs::read_to_string(file).unwrap();
            network_of(&Path::new("/proc").join(pid.trim())).unwrap()
        })
        .collect()
}

pub(crate) async fn until(cluster: &RealCluster, args: &[&str], wanted: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = cluster.kubectl(args).await;
        match &answer {
            Ok(text) if wanted(text) => return text.clone(),
            _ if Instant::now() > deadline => panic!("kubectl {args:?} on {} still answers {answer:?}", cluster.name()),
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

#[tokio::test]
async fn containers_run_and_see_exactly_their_devices() {
    if !requirements::met("containers_run_and_see_exactly_their_devices", &RealClusters::missing()) {
        return;
    }
    let _turn = turn().await;
    let binaries = Binaries::ensure(Needs::RealNodes).await.unwrap();
    let began = Instant::now();
    let clusters = RealClusters::start(&binaries, RealClustersConfig::default()).await.unwrap();
    eprintln!("both clusters ready after {:.1} s", began.elapsed().as_secs_f32());
    let donor = &clusters.donor;
    let own = networks(clusters.dir());
    assert_eq!(own.len(), 3, "two nodes and a router have a network each");
    assert!(!own.contains(&network_of(Path::new("/proc/self")).unwrap()), "the host's network is none of them");

    // Two tenants' containers: three of the four GPUs and the fourth.
    donor.kubectl_with_input(&["apply", "-f", "-"], &pod("three", 3)).await.unwrap();
    donor.kubectl(&["wait", "--for=condition=Ready", "pod/three", "--timeout=60s"]).await.unwrap();
    eprintln!("first container Ready after {:.1} s from nothing", began.elapsed().as_secs_f32());
    donor.kubectl_with_input(&["apply", "-f", "-"], &pod("one", 1)).await.unwrap();
    donor.kubectl(&["wait", "--for=condition=Ready", "pod/one", "--timeout=60s"]).await.unwrap();
    let (three_gpus, three_devices) = seen(&donor.kubectl(&["logs", "three"]).await.unwrap());
    let (one_gpu, one_device) = seen(&donor.kubectl(&["exec", "one", "--", "/probe", "see"]).await.unwrap());
    assert_eq!((three_gpus.len(), three_devices.len()), (3, 3), "{three_gpus:?} {three_devices:?}");
    assert_eq!((one_gpu.len(), one_device.len()), (1, 1), "{one_gpu:?} {one_device:?}");
    let all: BTreeSet<_> = three_devices.union(&one_device).map(String::as_str).collect();
    assert_eq!(all, BTreeSet::from(["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"]));
    for index in 0..4 {
        let (gpu, device) = (&donor.gpu_uuid(1, index), format!("/dev/nvidia{index}"));
        assert!(three_gpus.contains(gpu) || one_gpu.contains(gpu), "{gpu}: {three_gpus:?} {one_gpu:?}");
        assert_eq!(three_gpus.contains(gpu), three_devices.contains(&device), "{gpu} and {device} go together");
    }

    // A fifth does not fit; it runs once one is free.
    donor.kubectl_with_input(&["apply", "-f", "-"], &pod("fifth", 1)).await.unwrap();
    let why = ["get", "pod", "fifth", "-o", "jsonpath={.status.phase}: {.status.conditions[0].message}"];
    until(donor, &why, |text| text.starts_with("Pending") && text.contains("Insufficient nvidia.com/gpu")).await;
    donor.kubectl(&["delete", "pod", "one"]).await.unwrap();
    until(donor, &["get", "pod", "fifth", "-o", "jsonpath={.status.phase}"], |text| text == "Running").await;

    // The container serves on the pod network, from its node; the router has no way there.
    let ip = donor.kubectl(&["get", "pod", "three", "-o", "jsonpath={.status.podIP}"]).await.unwrap();
    let (probe, url) = (binaries.program("probe"), format!("http://{ip}:8080/"));
    let inside = clusters.command_in(Where::Donor, &probe, &["get", &url]).output().await.unwrap();
    assert!(String::from_utf8_lossy(&inside.stdout).contains("host=three"), "{inside:?}");

    // From the router both API servers are in reach, and from each node the other's.
    let kubectl = binaries.program("kubectl");
    for (place, cluster) in [
        (Where::Router, &clusters.origin),
        (Where::Router, donor),
        (Where::Origin, donor),
        (Where::Donor, &clusters.origin),
    ] {
        let kubeconfig = format!("--kubeconfig={}", cluster.admin_kubeconfig_path().display());
        let output =
            clusters.command_in(place, &kubectl, &[&kubeconfig, "get", "--raw", "/readyz"]).output().await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ok", "{place:?} to {}: {output:?}", cluster.name());
    }

    // A killed kubelet leaves containers running and is started again.
    donor.signal("kubelet", "KILL").await.unwrap();
    let inside = clusters.command_in(Where::Donor, &probe, &["get", &url]).output().await.unwrap();
    assert!(inside.status.success(), "{inside:?}");
    assert!(donor.kubectl(&["logs", "three"]).await.is_err(), "without a kubelet there are no logs");
    donor.start_daemon("kubelet").await.unwrap();
    until(donor, &["logs", "three"], |log| log.contains("listening on :8080")).await;

    // A process of the test in one of the networks goes with the clusters.
    let mut agent = clusters.command_in(Where::Origin, &probe, &[]).env("PORT", "18080").spawn().unwrap();
    let dir = clusters.dir().to_owned();
    let began = Instant::now();
    clusters.stop().await.unwrap();
    eprintln!("teardown took {:.1} s", began.elapsed().as_secs_f32());
    assert!(!agent.wait().await.unwrap().success());
    assert_eq!(left(&dir, &own), BTreeSet::new());
}

#[tokio::test]
async fn nothing_is_left_after_the_owner_is_killed() {
    if !requirements::met("nothing_is_left_after_the_owner_is_killed", &RealClusters::missing()) {
        return;
    }
    let _turn = turn().await;
    let (mut child, said) = owner(&["real"]);
    let dir = Path::new(said.last().unwrap());
    let own = networks(dir);
    assert!(left(dir, &own).len() > 15, "daemons run");
    child.kill().unwrap();
    child.wait().unwrap();
    let took = wait_until_gone(|| left(dir, &own));
    eprintln!("nothing left {} ms after SIGKILL of the owner", took.as_millis());
}

#[tokio::test]
async fn leftovers_of_a_killed_supervisor_are_swept_by_the_next_start() {
    if !requirements::met("leftovers_of_a_killed_supervisor_are_swept_by_the_next_start", &RealClusters::missing()) {
        return;
    }
    let _turn = turn().await;
    let (mut child, said) = owner(&["real"]);
    let dir = Path::new(said.last().unwrap());
    let own = networks(dir);
    let supervisor = std::fs::read_to_string(dir.join("supervisor.pid")).unwrap();
    let killed = std::process::Command::new("kill").args(["-KILL", supervisor.trim()]).status().unwrap();
    assert!(killed.success());
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel ends the nodes; cgroups and files stay until somebody sweeps.
    wait_until_gone(|| {
        left(dir, &own)
            .into_iter()
            .filter(|left| !left.starts_with("cgroup ") && !left.starts_with("folder "))
            .collect()
    });
    assert!(dir.exists());

    let binaries = Binaries::ensure(Needs::RealNodes).await.unwrap();
    let config =
        RealClustersConfig { donor_gpus: 1, donor_nodes: 2, names_pod_networks: true, ..RealClustersConfig::default() };
    let clusters = RealClusters::start(&binaries, config).await.unwrap();
    // Without the networks: the numbers of the old ones may be those of the new ones by now.
    assert_eq!(left(dir, &BTreeSet::new()), BTreeSet::new());
    a_second_node(&clusters, &binaries).await;
    let (dir, own) = (clusters.dir().to_owned(), networks(clusters.dir()));
    assert_eq!(own.len(), 4, "three nodes and a router have a network each");
    clusters.stop().await.unwrap();
    assert_eq!(left(&dir, &own), BTreeSet::new());
}

/// The donor's second node runs pods, with its GPUs, which the first reaches.
async fn a_second_node(clusters: &RealClusters, binaries: &Binaries) {
    let donor = &clusters.donor;
    assert_eq!((donor.nodes(), donor.pod_cidr()), (2, "10.220.0.0/22"));
    for (name, node) in [("first", 1), ("second", 2)] {
        let name_of_node = donor.nth_node_name(node);
        let named = ["get", "node", &name_of_node, "-o", "jsonpath={.spec.podCIDR}"];
        assert_eq!(donor.kubectl(&named).await.unwrap(), donor.nth_pod_cidr(node));
        let pod = pod(name, 1).replace("spec:\n", &format!("spec:\n  nodeName: {name_of_node}\n"));
        donor.kubectl_with_input(&["apply", "-f", "-"], &pod).await.unwrap();
    }
    donor.kubectl(&["wait", "--for=condition=Ready", "pod/first", "pod/second", "--timeout=60s"]).await.unwrap();
    let ip = donor.kubectl(&["get", "pod", "second", "-o", "jsonpath={.status.podIP}"]).await.unwrap();
    assert!(ip.starts_with("10.220.1."), "{ip}");
    let (probe, url) = (binaries.program("probe"), format!("http://{ip}:8080/"));
    // From a pod, from the first node, and from the second one itself.
    let said = donor.kubectl(&["exec", "first", "--", "/probe", "get", &url]).await.unwrap();
    assert!(said.contains("host=second"), "{said}");
    for node in [1, 2] {
        let inside = donor.command_in_nth_node(node, &probe, &["get", &url]).output().await.unwrap();
        assert!(String::from_utf8_lossy(&inside.stdout).contains("host=second"), "{inside:?}");
    }
}

#[tokio::test]
async fn a_start_without_patience_says_so_and_leaves_nothing() {
    if !requirements::met("a_start_without_patience_says_so_and_leaves_nothing", &RealClusters::missing()) {
        return;
    }
    let _turn = turn().await;
    let binaries = Binaries::ensure(Needs::RealNodes).await.unwrap();
    let folders = || -> BTreeSet<_> {
        let root = binaries.folder().ancestors().nth(2).unwrap().join("real-clusters");
        std::fs::read_dir(root).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    };
    let before = folders();
    // Long enough for the namespaces, too short for the rest: how long that is depends on the machine.
    let mut said = String::new();
    for seconds in [2, 4, 8, 16] {
        let config = RealClustersConfig { patience: Duration::from_secs(seconds), ..RealClustersConfig::default() };
        said = RealClusters::start(&binaries, config).await.unwrap_err().to_string();
        assert!(said.contains(&format!("not ready after {seconds} s")), "{said}");
        if said.contains("namespaces are up") {
            break;
        }
    }
    assert!(said.contains("namespaces are up"), "{said}");
    assert!(folders().is_subset(&before), "{:?}", folders());
}
