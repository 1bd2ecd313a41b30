//! Clusters leave nothing behind when they are stopped or dropped, or their owner is killed.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, Needs, SimulatedNode};

const GONE_WITHIN: Duration = Duration::from_secs(15);

/// The command lines of processes that mention `text`. Zombies have none.
pub(crate) fn processes_of(text: &str) -> BTreeSet<String> {
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let pid: u32 = path.file_name()?.to_str()?.parse().ok()?;
            let line = std::fs::read(path.join("cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            (pid != std::process::id() && line.contains(text)).then_some(line)
        })
        .collect()
}

/// Waits until `left` is empty; returns the duration.
pub(crate) fn wait_until_gone(left: impl Fn() -> BTreeSet<String>) -> Duration {
    let began = Instant::now();
    loop {
        let left = left();
        if left.is_empty() {
            return began.elapsed();
        }
        assert!(began.elapsed() < GONE_WITHIN, "left behind: {left:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts clusters in their own process; returns it and its output up to "ready".
pub(crate) fn owner(args: &[&str]) -> (Child, Vec<String>) {
    let mut child =
        Command::new(env!("CARGO_BIN_EXE_test-clusters")).args(args).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    for line in lines {
        if line == "ready" {
            return (child, said);
        }
        said.push(line);
    }
    panic!("test-clusters {args:?} did not start: {:?}", child.wait());
}

async fn start(dir: PathBuf) -> ControlPlane {
    let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
    let nodes = vec![SimulatedNode::h100("node-1", 8)];
    ControlPlane::start(&binaries, ControlPlaneConfig { nodes, ..ControlPlaneConfig::new("passing", dir) })
        .await
        .unwrap()
}

fn files_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[tokio::test]
async fn nothing_is_left_after_stop() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = start(dir.path().join("cluster")).await;
    assert_eq!(processes_of(dir.path().to_str().unwrap()).len(), 5, "five daemons run");
    cluster.stop().await.unwrap();
    assert_eq!(processes_of(dir.path().to_str().unwrap()), BTreeSet::new());
    assert_eq!(files_in(dir.path()), 0, "files are left");
}

#[tokio::test]
async fn nothing_is_left_after_a_drop() {
    let dir = tempfile::tempdir().unwrap();
    drop(start(dir.path().join("cluster")).await);
    assert_eq!(processes_of(dir.path().to_str().unwrap()), BTreeSet::new());
    assert_eq!(files_in(dir.path()), 0, "files are left");
}

#[tokio::test]
async fn nothing_runs_after_the_owner_is_killed_and_the_place_can_be_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("cluster");
    let path = place.to_str().unwrap();
    let (mut child, _) = owner(&["simulated", "--dir", path]);
    assert_eq!(processes_of(path).len(), 6, "the owner and five daemons run");
    child.kill().unwrap();
    child.wait().unwrap();
    let took = wait_until_gone(|| processes_of(path));
    eprintln!("no daemon left {} ms after SIGKILL of the owner", took.as_millis());
    // The files of the dead are swept by the next start.
    start(place.clone()).await.stop().await.unwrap();
    assert!(!place.exists(), "files are left");
}

#[tokio::test]
async fn a_folder_whose_owner_lives_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("cluster");
    let cluster = start(place.clone()).await;
    let binaries = Binaries::ensure(Needs::ControlPlane).await.unwrap();
    let error =
        ControlPlane::start(&binaries, ControlPlaneConfig::new("second", &place)).await.unwrap_err().to_string();
    assert!(error.contains(&format!("is in use by process {}", std::process::id())), "{error}");
    // The refusal has not touched the first one.
    cluster.kubectl(&["get", "nodes"]).await.unwrap();
    cluster.stop().await.unwrap();
}
