//! A PC without Kubernetes lends: a tenant's pod runs there as a container, through brokers, handshake and tunnel.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource};
use comity_testkit::{
    Binaries, CANARY_IMAGE, ContainerGpus, Needs, missing_for_containers, requirements, write_canary_image,
};

use crate::OrLogs as _;
use crate::inventories::inventory;

const ORIGIN: &str = "polytech-campus";
const DONOR: &str = "ncc-main";
/// GPUs of the PC. Its Cluster document keeps two of them for local work.
const GPUS: u32 = 4;

/// Runs podman on the PC's store, as its owner does.
fn podman(federation: &Federation, arguments: &[&str]) -> String {
    let state = federation.agent_dir(DONOR);
    let mut command = Command::new(comity_scenarios::program("comity-agent").unwrap());
    let config = federation.dir().join(format!("{DONOR}.yaml"));
    let output = command.arg("podman").arg("--state").arg(&state).arg("--config").arg(config);
    let output = output.arg("--").args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn kubectl(program: &Path, kubeconfig: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).arg("--kubeconfig").arg(kubeconfig).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_on_a_borrowed_pc_and_nothing_of_it_is_left() {
    if !requirements::met("a_pod_runs_on_a_borrowed_pc_and_nothing_of_it_is_left", &missing_for_containers()) {
        return;
    }
    let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
    let gpus = ContainerGpus::make("pc", GPUS).unwrap();
    let mut federation = Federation::start(FederationConfig::with_example_policy()).await.unwrap();
    for (cluster, devices) in [(ORIGIN, 0), (DONOR, GPUS)] {
        let file = inventory(federation.dir(), cluster, devices, "frontier");
        let mut spec = AgentSpec::new(cluster, InventorySource::File(file));
        if cluster == DONOR {
            spec.more = format!("site:\n  devices: {}\n  localImages: [\"comity.local/*\"]\n", gpus.kind);
        }
        federation.join(spec).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    let scratch = tempfile::tempdir().unwrap();
    let archive = scratch.path().join("image.tar");
    std::fs::create_dir(scratch.path().join("root")).unwrap();
    write_canary_image(&scratch.path().join("root"), &archive).unwrap();
    podman(&federation, &["load", "--quiet", "--input", archive.to_str().unwrap()]);

    let request = federation.submit(1, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    let kubeconfig = federation.kubeconfig(&lease, ORIGIN).await.or_logs(&federation);
    let program = binaries.program("kubectl");
    let image = format!("--image={CANARY_IMAGE}");
    let overrides = format!(
        "--overrides={}",
        serde_json::json!({ "spec": { "terminationGracePeriodSeconds": 2, "containers": [{
            "name": "train", "image": CANARY_IMAGE,
            "command": ["/bin/sh", "-c", "echo devices /dev/comity-pc-*; /bin/sleep 1; echo trained"],
            "resources": { "limits": { "nvidia.com/gpu": "1" } },
        }] } })
    );
    let (created, text) = kubectl(&program, &kubeconfig, &["run", "train", &image, "--restart=Never", &overrides]);
    assert!(created, "{text}\n{}", federation.logs());
    let wait = |phase: &str| format!("--for=jsonpath={{.status.phase}}={phase}");
    let (ended, text) = kubectl(&program, &kubeconfig, &["wait", &wait("Succeeded"), "pod/train", "--timeout=60s"]);
    assert!(ended, "{text}\n{}", federation.logs());
    let (_, log) = kubectl(&program, &kubeconfig, &["logs", "train"]);
    let lines: Vec<&str> = log.lines().collect();
    assert!(matches!(lines[..], [devices, "trained"] if devices.split(' ').count() == 2), "one GPU, not two: {log}");
    // One that still runs when the lease is released.
    let long = overrides.replace("/bin/sleep 1", "/bin/sleep 600");
    let (created, text) = kubectl(&program, &kubeconfig, &["run", "long", &image, "--restart=Never", &long]);
    assert!(created, "{text}");
    let (running, text) = kubectl(&program, &kubeconfig, &["wait", &wait("Running"), "pod/long", "--timeout=60s"]);
    assert!(running, "{text}");
    federation.comity(&["lease", "release", &lease, "--yes"]).await.or_logs(&federation);
    federation.lease_in(&lease, "ended", Duration::from_secs(60)).await.or_logs(&federation);
    assert_eq!(podman(&federation, &["ps", "--all", "--quiet"]), "", "no container is left");
    for folder in ["pods", "volumes", "objects"] {
        let left = std::fs::read_dir(federation.agent_dir(DONOR).join("site").join(folder)).unwrap().count();
        assert_eq!(left, 0, "{folder}");
    }
    let runroot = podman(&federation, &["info", "--format={{.Store.RunRoot}}"]);
    podman(&federation, &["rmi", "--force", "--all"]);
    std::fs::remove_dir_all(runroot.trim()).unwrap();
}
