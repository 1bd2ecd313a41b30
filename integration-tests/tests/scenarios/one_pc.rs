//! A PC without Kubernetes lends: a tenant's pod runs there as a container, through brokers, handshake and tunnel.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource};
use comity_testkit::{
    Binaries, CANARY_IMAGE, ContainerGpus, Needs, SHELL_IMAGE, missing_for_containers, requirements,
    write_canary_image, write_shell_image,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::ChildStdout;

use crate::OrLogs as _;
use crate::inventories::inventory;

const ORIGIN: &str = "polytech-campus";
const DONOR: &str = "ncc-main";
/// GPUs of the PC. Its Cluster document keeps two of them for local work.
const GPUS: u32 = 4;

type WriteImage = fn(&Path, &Path) -> std::io::Result<()>;

/// A federation of an origin without GPUs and a PC that lends.
struct Pc {
    federation: Federation,
    _gpus: ContainerGpus,
}

impl Pc {
    /// Makes it, with these images in the PC's store; `name` tells its GPUs from those of other tests.
    async fn join(name: &str, images: &[WriteImage]) -> Self {
        let gpus = ContainerGpus::make(name, GPUS).unwrap();
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
        let pc = Self { federation, _gpus: gpus };
        for write in images {
            let scratch = tempfile::tempdir().unwrap();
            let archive = scratch.path().join("image.tar");
            std::fs::create_dir(scratch.path().join("root")).unwrap();
            write(&scratch.path().join("root"), &archive).unwrap();
            pc.podman(&["load", "--quiet", "--input", archive.to_str().unwrap()]);
        }
        pc
    }

    /// Runs podman on the PC's store, as its owner does.
    fn podman(&self, arguments: &[&str]) -> String {
        let state = self.federation.agent_dir(DONOR);
        let mut command = Command::new(comity_scenarios::program("comity-agent").unwrap());
        let config = self.federation.dir().join(format!("{DONOR}.yaml"));
        let output = command.arg("podman").arg("--state").arg(&state).arg("--config").arg(config);
        let output = output.arg("--").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Nothing of a guest is left.
    fn assert_empty(&self) {
        assert_eq!(self.podman(&["ps", "--all", "--quiet"]), "", "no container is left");
        for folder in ["pods", "volumes", "objects"] {
            let folder = self.federation.agent_dir(DONOR).join("site").join(folder);
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "{}", folder.display());
        }
    }
}

impl Drop for Pc {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let runroot = self.podman(&["info", "--format={{.Store.RunRoot}}"]);
        self.podman(&["rmi", "--force", "--all"]);
        std::fs::remove_dir_all(runroot.trim()).unwrap();
    }
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
    let pc = Pc::join("pc", &[write_canary_image]).await;
    let federation = &pc.federation;
    let request = federation.submit(1, "frontier").await.or_logs(federation);
    let lease = federation.lease_of(&request).await.or_logs(federation);
    let kubeconfig = federation.kubeconfig(&lease, ORIGIN).await.or_logs(federation);
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
    federation.comity(&["lease", "release", &lease, "--yes"]).await.or_logs(federation);
    federation.lease_in(&lease, "ended", Duration::from_secs(60)).await.or_logs(federation);
    pc.assert_empty();
}

/// A `comity run` on the PC, from its own folder.
struct Run<'a> {
    pc: &'a Pc,
    folder: tempfile::TempDir,
}

impl<'a> Run<'a> {
    fn with_files(pc: &'a Pc, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Self { pc, folder }
    }

    fn command(&self, script: &str) -> tokio::process::Command {
        self.command_with(&[], script)
    }

    fn command_with(&self, flags: &[&str], script: &str) -> tokio::process::Command {
        let federation = &self.pc.federation;
        let socket = federation.agent_dir(ORIGIN).join("agent.sock");
        let words = ["run", "--tenant", "poly-ml", "--origin", ORIGIN, "--class", "frontier", "--image", SHELL_IMAGE];
        let more = ["--env", "EPOCHS=3", "--agent", socket.to_str().unwrap()];
        let command = ["--", "/bin/sh", "-c", script];
        let words = [&words[..], &more, flags, &command].concat();
        let mut command = federation.command().command("alice", &words).unwrap();
        command.current_dir(self.folder.path()).kill_on_drop(true);
        command
    }

    /// Starts it, and waits until the command has printed `up`.
    async fn up(&self, script: &str) -> (tokio::process::Child, tokio::io::Lines<BufReader<ChildStdout>>) {
        let mut child = self.command(script).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await;
        assert_eq!(first.expect("in time").unwrap().as_deref(), Some("up"), "{}", self.pc.federation.logs());
        (child, lines)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }
}

/// Waits until no lease is left; a minute is the limit even after a client that was killed.
async fn leases_end(federation: &Federation) {
    let began = Instant::now();
    loop {
        let list = federation.comity(&["lease", "list"]).await.or_logs(federation);
        if list["items"].as_array().unwrap().is_empty() {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{list}\n{}", federation.logs());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_on_a_borrowed_gpu_for_as_long_as_it_takes() {
    if !requirements::met("a_command_runs_on_a_borrowed_gpu_for_as_long_as_it_takes", &missing_for_containers()) {
        return;
    }
    let pc = Pc::join("run", &[write_shell_image]).await;
    let files = [("data.txt", "input"), ("large.bin", "x"), (".comityignore", "*.bin\n")];
    let run = Run::with_files(&pc, &files);
    let script = "echo devices /dev/comity-run-*; echo epochs $EPOCHS; cat data.txt; echo; ls large.bin; \
                  mkdir -p out; echo weights >out/model; exit 3";
    let planned = run.command_with(&["--dry-run", "-o", "json"], script).output().await.unwrap();
    let planned: serde_json::Value = serde_json::from_slice(&planned.stdout).unwrap();
    assert_eq!(planned["files"], serde_json::json!([".comityignore", "data.txt"]), "{planned}");
    assert_eq!(planned["request"]["spec"]["gpus"]["class"], "frontier", "{planned}");
    let output = tokio::time::timeout(Duration::from_secs(60), run.command(script).output()).await;
    let output = output.expect("in time").unwrap();
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(3), "{out}{said}{}", pc.federation.logs());
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[1..3], ["epochs 3", "input"], "{out}");
    assert_eq!(lines[0].split(' ').count(), 2, "one GPU of four: {out}");
    assert!(out.contains("large.bin: No such file"), "ignored files stay: {out}");
    assert!(said.contains("1 file, 8 B, fetched"), "{said}");
    assert_eq!(run.read("out/model"), "weights\n");

    // An interactive command has this standard input, and both of its outputs.
    let run = Run::with_files(&pc, &[]);
    std::fs::write(run.folder.path().join("input"), "typed\n").unwrap();
    let input = std::fs::File::open(run.folder.path().join("input")).unwrap();
    let mut shell = run.command_with(&["--interactive", "--no-upload"], "cat; echo told >&2; exit 5");
    let output = tokio::time::timeout(Duration::from_secs(60), shell.stdin(input).output()).await;
    let output = output.expect("in time").unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(5), &b"typed\n"[..]), "{output:?}");
    assert!(output.stderr.windows(5).any(|part| part == b"told\n"), "{output:?}");

    // A signal goes to the command, whose code and files come back.
    let save = "trap 'echo state >saved; exit 9' TERM; echo up; while :; do sleep 0.1; done";
    let run = Run::with_files(&pc, &[]);
    let (mut child, _lines) = run.up(save).await;
    signal(&child, "-TERM");
    let ended = tokio::time::timeout(Duration::from_secs(30), child.wait()).await.expect("in time").unwrap();
    assert_eq!((ended.code(), run.read("saved").as_str()), (Some(9), "state\n"));
    leases_end(&pc.federation).await;

    // Two of them end the run, whatever the command does.
    let run = Run::with_files(&pc, &[]);
    let (mut child, _lines) = run.up("trap '' TERM INT; echo up; while :; do sleep 0.1; done").await;
    signal(&child, "-INT");
    tokio::time::sleep(Duration::from_millis(500)).await;
    signal(&child, "-INT");
    let ended = tokio::time::timeout(Duration::from_secs(30), child.wait()).await.expect("in time").unwrap();
    assert_eq!(ended.code(), Some(130));
    leases_end(&pc.federation).await;

    // The owner needs the GPUs: the command hears of it at the beginning of the notice.
    let run = Run::with_files(&pc, &[]);
    let (mut child, _lines) = run.up(save).await;
    let inventory = pc.federation.dir().join(format!("{DONOR}.inventory.yaml"));
    let before = std::fs::read_to_string(&inventory).unwrap();
    let in_use = format!("    localUse: {{gpus: {GPUS}}}\n    gpus:\n");
    std::fs::write(&inventory, before.replace("    gpus:\n", &in_use)).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait()).await.expect("in time").unwrap();
    assert_eq!((ended.code(), run.read("saved").as_str()), (Some(9), "state\n"), "{}", pc.federation.logs());
    std::fs::write(&inventory, before).unwrap();
    leases_end(&pc.federation).await;

    // One that is killed cannot give its lease back, which then ends with its term.
    let run = Run::with_files(&pc, &[]);
    let (mut child, _lines) = run.up("echo up; while :; do sleep 0.1; done").await;
    child.kill().await.unwrap();
    leases_end(&pc.federation).await;
    pc.assert_empty();
}

/// The lease's first credential holds for less than three minutes. The donor's agent restarts meanwhile.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes four minutes"]
async fn a_run_outlives_its_credential_and_the_donors_agent() {
    if !requirements::met("a_run_outlives_its_credential_and_the_donors_agent", &missing_for_containers()) {
        return;
    }
    let mut pc = Pc::join("long", &[write_shell_image]).await;
    let folder = tempfile::tempdir().unwrap();
    let script = "echo up; for i in $(seq 1 210); do sleep 1; echo tick $i; done; echo done >result";
    let (mut child, lines, folder) = {
        let run = Run { pc: &pc, folder };
        let mut child = run.command(script).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let lines = tokio::spawn(async move {
            let (mut lines, mut all) = (BufReader::new(output).lines(), Vec::new());
            while let Ok(Some(line)) = lines.next_line().await {
                all.push(line);
            }
            all
        });
        (child, lines, run.folder)
    };
    tokio::time::sleep(Duration::from_secs(30)).await;
    pc.federation.kill_agent(DONOR).await.unwrap();
    pc.federation.start_agent(DONOR).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(300), child.wait()).await.expect("in time").unwrap();
    assert_eq!(ended.code(), Some(0), "{}", pc.federation.logs());
    let lines = lines.await.unwrap();
    let ticks = (1..=210).map(|tick| format!("tick {tick}"));
    assert_eq!(lines, ["up".to_owned()].into_iter().chain(ticks).collect::<Vec<_>>());
    assert_eq!(std::fs::read_to_string(folder.path().join("result")).unwrap(), "done\n");
    leases_end(&pc.federation).await;
    pc.assert_empty();
}

fn signal(child: &tokio::process::Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().unwrap().to_string()]).status().unwrap();
    assert!(status.success());
}
