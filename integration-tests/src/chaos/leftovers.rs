//! Checks after the faults that everything ends and nothing is left behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use comity_agent::services::local_api::fetch_status;
use comity_agent_state::store::Store;

use super::federation_faults::BROKER_COUNT;
use super::federation_injector::check_invariants;
use super::grants::{SharedLedger, with};
use super::view::{Scope, read_leases, read_requests};
use super::world::World;
use crate::comity::Comity;
use crate::wait::until;

/// All leases and peerings end within this time: handshakes that failed are tried again, and idle peerings wait first.
/// All are limits against hanging: on an overloaded machine everything takes long.
const END_TIMEOUT: Duration = Duration::from_secs(600);
/// Timeout for each component to remove its records afterwards.
const CLEANUP_TIMEOUT: Duration = crate::PATIENCE;

/// Waits until all leases and peerings end, and records leftovers in the ledger.
pub(super) async fn check(world: &mut World, ledger: &SharedLedger, accepted: &BTreeSet<String>) -> Result<()> {
    let comity = world.federation.command();
    let violated = |text: String| with(ledger, |ledger| ledger.violated(text));
    eprintln!("waiting for the end of all leases and peerings");
    if let Err(error) = until("all leases and peerings to end", END_TIMEOUT, async || all_ended(&comity).await).await {
        violated(format!("{error:#}"));
    }
    let leases = read_leases(&comity, ledger, Scope::All).await?;
    for lease in leases.iter().filter(|lease| lease.state != "ended" || lease.end_reason.is_none()) {
        violated(format!("{} is {} in the end, reason {:?}", lease.id, lease.state, lease.end_reason));
    }
    requests_ended(&comity, accepted, ledger).await?;
    for cluster in &world.clusters {
        let socket = world.federation.agent_dir(&cluster.id).join("agent.sock");
        let forgets =
            until("an agent to have nothing left", CLEANUP_TIMEOUT, async || agent_is_clean(&socket).await).await;
        let clean = until("an API server to have nothing left", CLEANUP_TIMEOUT, async || {
            let left = cluster.left_over().await?;
            ensure!(left.is_empty(), "there is {}", left.join(", "));
            Ok(Some(()))
        })
        .await;
        for error in [forgets, clean].into_iter().filter_map(Result::err) {
            violated(format!("{}: {error:#}", cluster.id));
        }
    }
    if let Err(error) =
        until("the brokers to be alike and empty", CLEANUP_TIMEOUT, async || brokers_are_alike(&comity).await).await
    {
        violated(format!("{error:#}"));
    }
    check_invariants(&comity, ledger).await;
    for text in with(ledger, |ledger| ledger.unresolved()) {
        violated(text);
    }
    for text in disks(world).await? {
        violated(text);
    }
    for text in panics(world)? {
        violated(text);
    }
    Ok(())
}

async fn all_ended(comity: &Comity) -> Result<Option<()>> {
    for (what, user, args) in [
        ("leases", "alice", ["lease", "list"]),
        ("requests", "alice", ["request", "list"]),
        ("peerings", "admin", ["peering", "list"]),
    ] {
        let list = comity.json(user, &args).await?;
        let left: Vec<String> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|item| format!("{} {} ({})", item["id"], item["state"], item["message"]))
            .collect();
        ensure!(left.is_empty(), "{} {what}: {}", left.len(), left.join(", "));
    }
    Ok(Some(()))
}

/// Checks that every acknowledged request is known, has ended, and has a reason.
async fn requests_ended(comity: &Comity, accepted: &BTreeSet<String>, ledger: &SharedLedger) -> Result<()> {
    let mut known = BTreeSet::new();
    for request in read_requests(comity, Scope::All).await? {
        let id = request["id"].as_str().context("a request has an id")?.to_owned();
        let ended = matches!(request["state"].as_str(), Some("completed" | "cancelled" | "failed"));
        if !ended || request["message"].as_str().is_none_or(str::is_empty) {
            with(ledger, |ledger| {
                ledger.violated(format!("{id} is {} in the end: {}", request["state"], request["message"]))
            });
        }
        known.insert(id);
    }
    for lost in accepted.difference(&known) {
        with(ledger, |ledger| ledger.violated(format!("{lost} was acknowledged, and no broker knows of it")));
    }
    for nobodys in known.difference(accepted) {
        with(ledger, |ledger| ledger.violated(format!("{nobodys} was never acknowledged to anybody")));
    }
    Ok(())
}

async fn agent_is_clean(socket: &Path) -> Result<Option<()>> {
    let status = fetch_status(socket).await?;
    let clean = status.lent.is_empty()
        && status.borrowed.is_empty()
        && status.tunnels.is_empty()
        && status.outbox == 0
        && status.lent_gpu_milli == 0;
    ensure!(clean, "it has {status:?}");
    Ok(Some(()))
}

async fn brokers_are_alike(comity: &Comity) -> Result<Option<()>> {
    let status = comity.json("admin", &["raft", "status"]).await?;
    let brokers = status["brokers"].as_array().context("a status names brokers")?;
    let digests: BTreeSet<&str> = brokers.iter().filter_map(|broker| broker["stateSha256"].as_str()).collect();
    let empty = brokers.iter().filter(|broker| broker["error"].is_null() && broker["envelopes"] == 0).count();
    ensure!(digests.len() == 1 && empty == BROKER_COUNT, "they are not: {status}");
    Ok(Some(()))
}

/// Stops the agents and lists leases and peerings in their state directories.
async fn disks(world: &mut World) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for cluster in &world.clusters {
        world.federation.kill_agent(&cluster.id).await?;
        let dir = world.federation.agent_dir(&cluster.id);
        let kept = tokio::task::spawn_blocking(move || kept(&dir)).await??;
        if !kept.is_empty() {
            left.push(format!("the agent of {} keeps {}", cluster.id, kept.join(", ")));
        }
    }
    Ok(left)
}

/// Leases and peerings in an agent's state directory.
fn kept(dir: &Path) -> Result<Vec<String>> {
    let records = Store::open(dir)?.records();
    let mut kept: Vec<String> = Vec::new();
    kept.extend(records.peerings.keys().map(|(peering, epoch)| format!("keys of {peering} epoch {epoch}")));
    kept.extend(records.donors.keys().map(|lease| format!("a record of {lease}, lent")));
    kept.extend(records.origins.keys().map(|lease| format!("a record of {lease}, borrowed")));
    kept.extend(records.closed.keys().map(|peering| format!("a note that {peering} was closed")));
    kept.extend(records.outbox.values().map(|outgoing| format!("a message: {:?}", outgoing.key)));
    if let Ok(files) = std::fs::read_dir(dir.join("kubeconfigs")) {
        for file in files {
            kept.push(format!("the file {}", file?.file_name().display()));
        }
    }
    let notes = dir.join("origin-secrets.json");
    if notes.exists() {
        let notes: serde_json::Value = serde_json::from_slice(&std::fs::read(notes)?)?;
        let Some(notes) = notes.as_object() else { bail!("the notes on Secrets are no map") };
        kept.extend(notes.keys().map(|lease| format!("a note on the Secret of {lease}")));
    }
    Ok(kept)
}

/// Panics in the logs of all processes.
fn panics(world: &World) -> Result<Vec<String>> {
    let brokers = (1..=BROKER_COUNT).map(|id| format!("broker-{id}"));
    let mut found = Vec::new();
    for name in brokers.chain(world.clusters.iter().map(|cluster| cluster.id.clone())) {
        let log = world.federation.log_of(&name)?;
        found.extend(log.lines().filter(|line| line.contains("panicked")).map(|line| format!("{name}: {line}")));
    }
    Ok(found)
}
