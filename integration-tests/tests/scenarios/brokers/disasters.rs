//! The drills of docs/disaster.md: runs its commands on brokers with damaged or lost disks.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use comity_scenarios::{Federation, PATIENCE, program, until};
use serde_json::Value;
use tokio::process::Command;

use crate::OrLogs as _;
use crate::inventories::origin_and_donor;

const DATA: &str = "/var/lib/comity-broker";
const PAGE: &str = include_str!("../../../../docs/disaster.md");

/// The commands under a heading, block by block.
fn blocks(heading: &str) -> Vec<Vec<&'static str>> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(heading)).expect("the page has this heading");
    let mut blocks = Vec::new();
    for part in section.split("```sh\n").skip(1) {
        blocks.push(part.split("```").next().expect("blocks end").lines().collect());
    }
    blocks
}

/// Runs the commands of one block on the machine of broker `id`; returns their output.
async fn run(federation: &mut Federation, id: u64, block: &[&str]) -> Result<String> {
    let mut printed = String::new();
    for line in block {
        let data = federation.broker_dir(id);
        let line = line.replace(DATA, data.to_str().context("paths of tests are text")?);
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["comity-broker", "run", ..] => federation.start_broker(id)?,
            ["comity-broker", ref args @ ..] => {
                let output = Command::new(program("comity-broker")?).args(args).output().await?;
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(output.status.success(), "{line}: {error}");
                printed.push_str(&String::from_utf8_lossy(&output.stdout));
            }
            ["comity", ref args @ ..] => printed.push_str(&federation.comity_as("admin", args).await?.to_string()),
            _ => bail!("not a command of this page: {line}"),
        }
    }
    Ok(printed)
}

/// Three brokers and two clusters with stopped agents, so that only requests change the state.
async fn without_agents() -> Federation {
    let mut federation = origin_and_donor().await;
    for cluster in ["polytech-campus", "ncc-main"] {
        federation.kill_agent(cluster).await.unwrap();
    }
    federation
}

async fn write(federation: &Federation, count: usize) -> Vec<String> {
    let mut requests = Vec::new();
    for _ in 0..count {
        let submitted =
            until("a request to be accepted", PATIENCE, async || federation.submit(1, "frontier").await.map(Some));
        requests.push(submitted.await.or_logs(federation));
    }
    requests
}

async fn all_there(federation: &Federation, requests: &[String]) {
    for request in requests {
        let shown = federation.comity(&["request", "show", request]).await.or_logs(federation);
        assert_eq!(&shown["id"], request.as_str(), "{shown}");
    }
}

fn member(status: &Value, id: u64) -> Option<&Value> {
    status["members"].as_array()?.iter().find(|member| member["id"] == id)
}

/// Waits until exactly these brokers vote; returns the status.
async fn voters(federation: &Federation, ids: &[u64]) -> Value {
    until("the voters", PATIENCE, async || {
        let status = federation.comity_as("admin", &["raft", "status"]).await?;
        let members = status["members"].as_array().context("a status names members")?;
        let mut voters: Vec<u64> =
            members.iter().filter(|it| it["voter"] == true).filter_map(|it| it["id"].as_u64()).collect();
        voters.sort_unstable();
        let ready = status["brokers"].as_array().into_iter().flatten().filter(|it| it["mayVote"] == true).count();
        Ok((voters == ids && ready == ids.len()).then_some(status))
    })
    .await
    .or_logs(federation)
}

/// Flips bits in the middle of the newest file of a log.
fn damage(data: &Path) {
    let log = data.join("group").join("log");
    let files = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path());
    let file = files.filter(|path| path.extension().is_some_and(|it| it == "wal")).max().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    std::fs::write(&file, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_or_lost_disk_is_filled_again_by_the_others() {
    let mut federation = without_agents().await;
    let before = voters(&federation, &[1, 2, 3]).await;
    let mut requests = write(&federation, 5).await;

    federation.kill_broker(2).await.unwrap();
    damage(&federation.broker_dir(2));
    federation.start_broker(2).unwrap();
    until("the damage to be noticed", PATIENCE, async || Ok((federation.ended_brokers()? == [2]).then_some(())))
        .await
        .unwrap();
    federation.kill_broker(2).await.unwrap();
    run(&mut federation, 2, &blocks("A disk is damaged")[0]).await.or_logs(&federation);
    let after = voters(&federation, &[1, 2, 3]).await;
    let incarnation = |status: &Value| member(status, 2).map(|it| it["incarnation"].clone());
    assert_ne!(incarnation(&before), incarnation(&after));
    assert!(federation.broker_dir(2).join("group.old-1").is_dir());

    // The founder loses its whole log: no command is needed.
    federation.kill_broker(1).await.unwrap();
    requests.extend(write(&federation, 5).await);
    std::fs::remove_dir_all(federation.broker_dir(1).join("group")).unwrap();
    federation.start_broker(1).unwrap();
    voters(&federation, &[1, 2, 3]).await;
    federation.kill_broker(3).await.unwrap();
    requests.extend(write(&federation, 1).await);
    all_there(&federation, &requests).await;
    federation.start_broker(3).unwrap();
    federation.agreed_state().await.or_logs(&federation);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_machine_takes_the_place_of_one_that_is_gone() {
    let mut federation = without_agents().await;
    voters(&federation, &[1, 2, 3]).await;
    let requests = write(&federation, 5).await;
    federation.kill_broker(3).await.unwrap();
    replaced(&mut federation, 3, 4, 1).await;
    voters(&federation, &[1, 2, 4]).await;
    all_there(&federation, &requests).await;

    // The removed broker starts again, and learns that it is no member.
    federation.start_broker(3).unwrap();
    until("broker 3 to end", PATIENCE, async || Ok((federation.ended_brokers()? == [3]).then_some(()))).await.unwrap();
    assert!(federation.logs().contains("was removed from its group"));
    federation.kill_broker(3).await.unwrap();

    // In time no founding broker is left. A broker whose disk is lost then recovers like any other.
    for (id, by) in [(1, 5), (2, 6)] {
        replaced(&mut federation, id, by, 4).await;
        federation.kill_broker(id).await.unwrap();
    }
    voters(&federation, &[4, 5, 6]).await;
    for id in [4, 6] {
        until("the founders to be forgotten", PATIENCE, async || {
            let settings: Value =
                serde_json::from_slice(&std::fs::read(federation.broker_dir(id).join("broker.json"))?)?;
            Ok(settings["members"].get("1").or(settings["members"].get("2")).is_none().then_some(()))
        })
        .await
        .or_logs(&federation);
    }
    federation.kill_broker(6).await.unwrap();
    std::fs::remove_dir_all(federation.broker_dir(6).join("group")).unwrap();
    federation.start_broker(6).unwrap();
    voters(&federation, &[4, 5, 6]).await;
    federation.kill_broker(4).await.unwrap();
    federation.start_broker(4).unwrap();
    federation.agreed_state().await.or_logs(&federation);
    all_there(&federation, &requests).await;
}

/// Replaces broker `id` by broker `by` with the commands of the page; creates its files on the machine of broker `on`.
async fn replaced(federation: &mut Federation, id: u64, by: u64, on: u64) {
    let (raft, client) = federation.add_broker(by).unwrap();
    let page = blocks("A machine is gone for good");
    let [make, start] = page[0][..] else { panic!("{page:?}") };
    let out = federation.broker_dir(by).to_str().unwrap().to_owned();
    let make = make.replace("/tmp/broker-4", &out).replace("--id 4", &format!("--id {by}"));
    run(federation, on, &[&make]).await.or_logs(federation);
    run(federation, by, &[start]).await.or_logs(federation);
    let replace = page[1][0].replace("replace 3 --by 4", &format!("replace {id} --by {by}"));
    let replace = replace.replace("d.example.org:7444", &raft).replace("d.example.org:7443", &client) + " --yes";
    until("the new broker to be reached", PATIENCE, async || run(federation, on, &[&replace]).await.map(Some))
        .await
        .or_logs(federation);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_group_is_made_of_the_copy_that_is_left() {
    let mut federation = without_agents().await;
    let before = voters(&federation, &[1, 2, 3]).await;
    let requests = write(&federation, 5).await;
    federation.agreed_state().await.or_logs(&federation);
    let page = blocks("A majority is gone for good");
    let refused = run(&mut federation, 3, &page[0]).await.unwrap_err().to_string();
    assert!(refused.contains("runs; stop it first"), "{refused}");
    federation.kill_broker(3).await.unwrap();
    let refused = run(&mut federation, 3, &page[0]).await.unwrap_err().to_string();
    assert!(refused.contains("leads a majority"), "{refused}");
    for id in [1, 2] {
        federation.kill_broker(id).await.unwrap();
    }

    let printed = run(&mut federation, 3, &page[0]).await.or_logs(&federation);
    assert!(printed.contains("nothing was changed") && printed.contains("copy of broker 3"), "{printed}");
    run(&mut federation, 3, &page[1]).await.or_logs(&federation);
    let alone = voters(&federation, &[3]).await;
    all_there(&federation, &requests).await;
    let group = |status: &Value| {
        status["brokers"].as_array().unwrap().iter().find_map(|it| it["group"].as_str().map(str::to_owned))
    };
    assert_ne!(group(&before), group(&alone));
    let next = write(&federation, 1).await;
    assert!(number(&next[0]) > number(&requests[4]) + 1_000, "{next:?} after {requests:?}");

    // Brokers of the old group can neither join the new one nor elect a leader.
    for id in [1, 2] {
        federation.start_broker(id).unwrap();
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let status = federation.comity_as("admin", &["raft", "status"]).await.or_logs(&federation);
    assert_eq!(status["members"].as_array().map(Vec::len), Some(1), "{status}");
    for id in [1, 2] {
        federation.kill_broker(id).await.unwrap();
        run(&mut federation, id, &page[2]).await.or_logs(&federation);
    }
    voters(&federation, &[1, 2, 3]).await;
    all_there(&federation, &requests).await;
    federation.agreed_state().await.or_logs(&federation);
}

/// The number of a request id: 17 for "req-17".
fn number(request: &str) -> u64 {
    request.rsplit('-').next().unwrap().parse().unwrap()
}
