//! Brokers join after a context was made and agents joined. Then the first broker dies, the only one that both knew.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use comity_scenarios::{Federation, FederationConfig, PATIENCE, Process, free_port, program, until};
use serde_json::Value;
use tokio::process::Command;

use crate::OrLogs as _;
use crate::inventories::origin_and_donor_with;

/// What an agent logs once a broker has welcomed it.
const CONNECTED: &str = "connected to the broker group";

/// Invites a broker, sets it up with its token, and waits until it votes.
async fn join_broker(federation: &Federation, id: u64) -> Result<Process> {
    let invited = federation.comity_as("admin", &["raft", "invite"]).await?;
    let token = federation.dir().join(format!("broker-{id}.token"));
    std::fs::write(&token, invited["token"].as_str().context("an invitation has a token")?)?;
    let mut command = Command::new(program("comity-broker")?);
    command.args(["up", "--join"]).arg(token).args(["--address", "127.0.0.1", "--admin-listen", "127.0.0.1:0"]);
    for flag in ["--client-listen", "--raft-listen"] {
        command.args([flag, &format!("127.0.0.1:{}", free_port()?)]);
    }
    command.arg("--data").arg(federation.broker_dir(id));
    let name = format!("broker-{id}");
    let process = Process::start(&name, command, &federation.dir().join(format!("{name}.log")))?;
    until("the broker to vote", PATIENCE, async || {
        let status = federation.comity_as("admin", &["raft", "status"]).await?;
        let members = status["members"].as_array().context("a status has members")?;
        let voters = members.iter().filter(|member| member["voter"] == true).count();
        Ok((u64::try_from(voters)? == id).then_some(()))
    })
    .await?;
    Ok(process)
}

/// Runs `comity -o json ARGS` with the contexts below `home`, and nothing else that names a broker.
async fn comity(home: &Path, args: &[&str]) -> Result<Value> {
    let mut command = Command::new(program("comity")?);
    command.args(["-o", "json"]).args(args).env("XDG_CONFIG_HOME", home).kill_on_drop(true);
    for variable in ["COMITY_BROKER", "COMITY_IDENTITY", "COMITY_CONTEXT"] {
        command.env_remove(variable);
    }
    let output = tokio::time::timeout(PATIENCE, command.output()).await??;
    ensure!(output.status.success(), "comity {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Waits until the agent's log from `start` on says that it is connected.
async fn connects(federation: &Federation, cluster: &str, start: usize) -> Result<()> {
    until(&format!("{cluster} to connect"), PATIENCE, async || {
        let log = federation.log_of(cluster)?;
        Ok(log.get(start..).context("logs grow")?.contains(CONNECTED).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_and_agents_reach_brokers_that_joined_later() {
    let config = FederationConfig { brokers: 1, ..FederationConfig::with_example_policy() };
    let mut federation = origin_and_donor_with(config).await;
    let home = federation.dir().join("contexts");
    let (first, identity) = (federation.broker_address(1).unwrap(), federation.dir().join("user-alice"));
    let identity = identity.to_str().unwrap();
    comity(&home, &["context", "add", "alice", "--broker", &first, "--identity", identity]).await.or_logs(&federation);
    let _second = join_broker(&federation, 2).await.or_logs(&federation);
    let _third = join_broker(&federation, 3).await.or_logs(&federation);

    comity(&home, &["whoami"]).await.or_logs(&federation);
    let context = comity(&home, &["context", "show"]).await.or_logs(&federation);
    assert_eq!(context["brokers"].as_array().map(Vec::len), Some(3), "{context}");
    assert_eq!(context["learntBrokers"].as_array().map(Vec::len), Some(2), "{context}");
    for cluster in ["ncc-main", "polytech-campus"] {
        let kept = federation.agent_dir(cluster).join("learnt-brokers");
        until("the agent to keep the addresses", PATIENCE, async || {
            Ok((std::fs::read_to_string(&kept)?.split(',').count() == 2).then_some(()))
        })
        .await
        .or_logs(&federation);
    }

    // One agent goes on; the other one starts while the broker that it joined at is dead.
    federation.kill_agent("polytech-campus").await.unwrap();
    let [running, stopped] = ["ncc-main", "polytech-campus"].map(|cluster| federation.log_of(cluster).unwrap().len());
    federation.kill_broker(1).await.unwrap();
    federation.start_agent("polytech-campus").unwrap();
    connects(&federation, "ncc-main", running).await.or_logs(&federation);
    connects(&federation, "polytech-campus", stopped).await.or_logs(&federation);
    let rights = comity(&home, &["whoami"]).await.or_logs(&federation);
    assert_eq!(rights["id"], "spiffe://comity.example/user/alice");
}
