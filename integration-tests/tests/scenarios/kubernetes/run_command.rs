//! `comity run` on a real kubelet.

use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comity_scenarios::Federation;
use comity_scenarios::burst::place;
use comity_testkit::{RealClusters, SHELL_IMAGE, Where, write_shell_image};
use tokio::io::AsyncReadExt as _;

use crate::OrLogs as _;

/// A port of the origin's network.
const PORT: &str = "18080:8080";

/// A command gets a part of an H100, a folder and a port; its output, files and exit code come back, and no lease is left.
pub(crate) async fn a_command_runs(federation: &Federation, clusters: &Arc<RealClusters>, origin: &str) {
    let (scratch, archive) = (federation.dir().join("shell-image"), federation.dir().join("shell.tar"));
    write_shell_image(&scratch, &archive).unwrap();
    clusters.donor.import_image(&archive).await.unwrap();
    let folder = federation.dir().join("run");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("data.txt"), "input").unwrap();
    let socket = federation.agent_dir(origin).join("agent.sock");
    let script = "echo $NVIDIA_VISIBLE_DEVICES; cat data.txt; echo; mkdir out; echo weights >out/model; \
                  echo served | nc -l -p 8080; exit 3";
    let words = ["run", "--tenant", "poly-ml", "--origin", origin, "--class", "frontier", "--image", SHELL_IMAGE];
    let flags =
        ["--mig", "2g.20gb", "--agent", socket.to_str().unwrap(), "--folder", folder.to_str().unwrap(), "--port", PORT];
    let command = federation.command().at(place(clusters, Where::Origin, clusters.origin.node_ip()));
    let command = command.command("alice", &[&words[..], &flags, &["--", "/bin/sh", "-c", script]].concat());
    let began = Instant::now();
    let errors = federation.dir().join("run.stderr");
    let stderr = std::fs::File::create(&errors).unwrap();
    let said = || std::fs::read_to_string(&errors).unwrap();
    let child = command.unwrap().stdout(Stdio::piped()).stderr(stderr).kill_on_drop(true).spawn().unwrap();
    let ended = child.wait_with_output();
    let asks = async {
        // The listener in the container is there a moment after the command's start.
        loop {
            let (_, there) = PORT.split_once(':').map(|(here, there)| (there, here)).unwrap();
            let nc = ["nc", "127.0.0.1", there];
            let mut client = clusters.command_in(Where::Origin, "/usr/bin/busybox".as_ref(), &nc);
            let client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
            let (mut client, mut answer) = (client.spawn().unwrap(), String::new());
            let read = client.stdout.take().unwrap().read_to_string(&mut answer).await;
            if read.is_ok() && answer == "served\n" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    let both = async { tokio::join!(ended, asks).0.unwrap() };
    let output = tokio::time::timeout(Duration::from_secs(180), both).await;
    let output = output.unwrap_or_else(|_| panic!("the run takes too long: {}\n{}", said(), federation.logs()));
    let (out, said) = (String::from_utf8_lossy(&output.stdout), said());
    println!("comity run: {:.1} s\n{said}", began.elapsed().as_secs_f32());
    assert_eq!(output.status.code(), Some(3), "{out}{said}{}", federation.logs());
    let lines: Vec<&str> = out.lines().collect();
    assert!(matches!(lines[..], [device, "input"] if device.starts_with("MIG-") && !device.contains(',')), "{out}");
    assert_eq!(std::fs::read_to_string(folder.join("out/model")).unwrap(), "weights\n");
    let leases = federation.comity(&["lease", "list", "--all"]).await.or_logs(federation);
    let of_run = leases["items"].as_array().unwrap().iter().max_by_key(|lease| lease["placedAtMs"].as_u64()).unwrap();
    assert_eq!(of_run["endReason"], "released", "{of_run}");
}
