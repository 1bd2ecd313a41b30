//! Programs in other languages, written with their own gRPC libraries, call the brokers. They have an identity's
//! files and the public `.proto` files, and verify the brokers' certificates as their libraries do by default.

use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context as _, Result, bail, ensure};
use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, PATIENCE, Process, free_port, until};
use comity_testkit::requirements;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::OrLogs as _;
use crate::inventories::inventory;

/// Name of the load balancer, which the brokers' certificates carry.
const BALANCER: &str = "brokers.comity.example";
/// Name that leads to a broker and that its certificate lacks.
const FOREIGN: &str = "other.comity.example";
/// gRPC codes.
const INVALID_ARGUMENT: u64 = 3;
const UNAVAILABLE: u64 = 14;

/// One of `integration-tests/clients`, and its first arguments.
struct Client {
    name: &'static str,
    args: &'static [&'static str],
}

const CLIENTS: [Client; 6] = [
    Client { name: "python", args: &[] },
    Client { name: "go", args: &[] },
    Client { name: "java", args: &[] },
    Client { name: "node", args: &["grpc"] },
    Client { name: "node", args: &["connect"] },
    Client { name: "grpcurl", args: &[] },
];

/// The built client programs, and a hosts file in which they find the load balancer.
struct Programs {
    folder: PathBuf,
    hosts: PathBuf,
    identity: PathBuf,
}

impl Programs {
    /// Runs a client against `broker` with `more` arguments.
    async fn output(&self, client: &Client, broker: &str, more: &[&str]) -> Result<Output> {
        let run = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", run]).arg(&self.hosts).arg(self.folder.join(client.name).join("client"));
        command.args(client.args).arg(broker).arg(&self.identity).args(more).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await.context("a client took too long")?;
        output.with_context(|| format!("start {}", client.name))
    }

    async fn report(&self, client: &Client, broker: &str, more: &[&str]) -> Result<Value> {
        let output = self.output(client, broker, more).await?;
        let who =
            || format!("{} {:?} at {broker}: {}", client.name, client.args, String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), who());
        serde_json::from_slice(&output.stdout).with_context(who)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_other_languages_submit_list_watch_and_understand_errors() {
    let (folder, missing) = requirements_of_clients().await.unwrap();
    if !requirements::met("clients of other languages", &missing) {
        return;
    }
    let config = FederationConfig { hosts: vec![BALANCER.to_owned()], ..FederationConfig::with_example_policy() };
    let mut federation = Federation::start(config).await.unwrap();
    let origin = InventorySource::File(inventory(federation.dir(), "polytech-campus", 0, "frontier"));
    federation.join(AgentSpec::new("polytech-campus", origin)).await.or_logs(&federation);
    federation.all_connected().await.or_logs(&federation);
    let hosts = federation.dir().join("hosts");
    std::fs::write(&hosts, format!("127.0.0.1 localhost {BALANCER} {FOREIGN}\n")).unwrap();
    let identity = federation.dir().join("user-alice");
    let programs = Programs { folder, hosts, identity };

    let address = federation.broker_address(1).unwrap();
    let (_, port) = address.rsplit_once(':').unwrap();
    let (_balancer, balancer_port) = load_balancer(&federation).await.or_logs(&federation);
    let ways = [address.clone(), format!("localhost:{port}"), format!("{BALANCER}:{balancer_port}")];
    for (number, client) in CLIENTS.iter().enumerate() {
        for (way, broker) in ways.iter().enumerate() {
            let run = format!("run-{number}-{way}");
            let report = programs.report(client, broker, &[&run]).await.or_logs(&federation);
            assert_whole_tour(&report, &format!("{} {:?} at {broker}", client.name, client.args));
        }
        let output = programs.output(client, &format!("{FOREIGN}:{port}"), &[]).await.unwrap();
        let reached = serde_json::from_slice(&output.stdout).is_ok_and(|it: Value| it["refused"].is_null());
        assert!(!reached, "{} {:?} accepts a certificate without the name it called", client.name, client.args);
    }

    for id in [2, 3] {
        federation.kill_broker(id).await.unwrap();
    }
    for client in &CLIENTS {
        let report = programs.report(client, &address, &[]).await.or_logs(&federation);
        let refused = &report["refused"];
        assert_eq!((&refused["code"], &refused["reason"]), (&json!(UNAVAILABLE), &json!("UNAVAILABLE")), "{report}");
        assert!(refused["retryAfterMs"].as_f64().is_some_and(|wait| wait > 0.0), "{} {report}", client.name);
    }
}

/// Checks the report of a run that submits three requests, lists and watches them, and submits an empty one.
fn assert_whole_tour(report: &Value, who: &str) {
    let submitted: Vec<&str> = report["submitted"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    let &[a, b, c] = &submitted[..] else { panic!("{who}: {report}") };
    assert!(a != b && b != c && a != c, "{who}: {report}");
    let queued = |id: &str| format!("{id} REQUEST_STATE_QUEUED");
    let cancelled = |id: &str| format!("{id} REQUEST_STATE_CANCELLED");
    let spec = ["tenant", "origin", "gpus.class", "gpus.share", "gpus.count", "delivery"];
    let missing = spec.iter().map(|field| format!("spec.{field}")).chain(["idempotency_key".to_owned()]);
    let expected = json!({
        "submitted": [a, b, c],
        "repeated": a,
        "pages": [[a], [b], [c]],
        "watched": [queued(a), queued(b)],
        "resumed": [queued(c), cancelled(a), cancelled(b), cancelled(c)],
        "refused": {
            "code": INVALID_ARGUMENT,
            "reason": "INVALID_FIELD",
            "fields": missing.collect::<Vec<_>>(),
            "retryAfterMs": null,
        },
    });
    assert_eq!(report, &expected, "{who}");
}

/// The folder of the client programs, and the requirements that this machine lacks.
async fn requirements_of_clients() -> Result<(PathBuf, Vec<String>)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/client-programs");
    let check = Command::new(script).arg("--check").output().await.context("scripts/client-programs")?;
    let mut missing = Vec::new();
    if !check.status.success() {
        let why = String::from_utf8_lossy(&check.stderr).trim().to_owned();
        missing.push(format!("{why} (scripts/client-programs builds them)"));
    }
    if !haproxy().arg("-v").output().await.is_ok_and(|output| output.status.success()) {
        missing.push("HAProxy (scripts/system-packages installs it)".to_owned());
    }
    if !Command::new("unshare").args(["--mount", "true"]).output().await.is_ok_and(|output| output.status.success()) {
        missing.push("root on Linux (a hosts file for the clients only)".to_owned());
    }
    let folder = String::from_utf8(check.stdout)?.trim().into();
    Ok((folder, missing))
}

/// HAProxy, which Debian installs outside the path of ordinary users.
fn haproxy() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "PATH=$PATH:/usr/sbin exec haproxy \"$@\"", "haproxy"]);
    command
}

/// Starts HAProxy in front of the three brokers; returns its process and port.
async fn load_balancer(federation: &Federation) -> Result<(Process, u16)> {
    let port = free_port()?;
    let mut command = haproxy();
    command.args(["-db", "-f"]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/haproxy.cfg"));
    command.env("BALANCER", format!("127.0.0.1:{port}"));
    for id in 1..=3 {
        command.env(format!("BROKER_{id}"), federation.broker_address(id)?);
    }
    let mut process = Process::start("haproxy", command, &federation.dir().join("haproxy.log"))?;
    until("the load balancer", PATIENCE, async || {
        if process.has_ended()? {
            bail!("it ended: {}", process.log_tail());
        }
        Ok(TcpStream::connect(("127.0.0.1", port)).await.is_ok().then_some(()))
    })
    .await?;
    Ok((process, port))
}
