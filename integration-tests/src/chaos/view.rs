//! Polls requests and leases from a quorum of the brokers once a second, for the ledger and the tenants.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::grants::{SharedLedger, with};
use super::ledger::LeaseFacts;
use crate::comity::{Comity, items};

/// Interval of the polls.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// One poll in this number also reads ended leases and requests.
const ENDED_EVERY: u32 = 10;

/// Requests and leases that have not ended.
#[derive(Debug)]
pub(super) struct View {
    /// Start of the poll.
    pub(super) at: Instant,
    /// Active leases by request.
    pub(super) active: BTreeMap<String, String>,
    /// Requests that have not ended, with their leases.
    pub(super) requests: BTreeMap<String, Option<String>>,
}

/// Polls until dropped.
pub(super) struct Poller {
    task: JoinHandle<()>,
    view: watch::Receiver<View>,
}

impl Poller {
    /// Starts polling.
    pub(super) fn start(comity: Comity, ledger: SharedLedger) -> Self {
        let nothing = View { at: Instant::now(), active: BTreeMap::new(), requests: BTreeMap::new() };
        let (tell, view) = watch::channel(nothing);
        let task = tokio::spawn(async move {
            for look in 0_u32.. {
                let next = tokio::time::Instant::now() + LOOK_EVERY;
                // Without a quorum there is no answer.
                if let Ok(view) = poll_once(&comity, &ledger, look.is_multiple_of(ENDED_EVERY)).await {
                    tell.send_replace(view);
                }
                tokio::time::sleep_until(next).await;
            }
        });
        Self { task, view }
    }

    /// Subscribes to the results.
    pub(super) fn view(&self) -> watch::Receiver<View> {
        self.view.clone()
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads leases into the ledger, including ended ones if `ended`, and returns them.
pub(super) async fn read_leases(comity: &Comity, ledger: &SharedLedger, ended: bool) -> Result<Vec<LeaseFacts>> {
    let args: &[&str] = if ended { &["lease", "list", "--all"] } else { &["lease", "list"] };
    let list = comity.json("alice", args).await?;
    let leases: Vec<LeaseFacts> = items(&list)?.iter().map(LeaseFacts::read).collect::<Result<_>>()?;
    let revision = list["revision"].as_u64().context("a list has a revision")?;
    with(ledger, |ledger| ledger.leases_are(revision, leases.clone()));
    Ok(leases)
}

/// Requests with their states and leases.
pub(super) async fn read_requests(comity: &Comity, ended: bool) -> Result<Vec<Value>> {
    let args: &[&str] = if ended { &["request", "list", "--all"] } else { &["request", "list"] };
    Ok(items(&comity.json("alice", args).await?)?.clone())
}

async fn poll_once(comity: &Comity, ledger: &SharedLedger, ended: bool) -> Result<View> {
    let at = Instant::now();
    let requests = read_requests(comity, false).await?;
    let leases = read_leases(comity, ledger, ended).await?;
    let in_force = |lease: &&LeaseFacts| matches!(lease.state.as_str(), "active" | "suspect");
    let of = |request: &Value| {
        let lease = request["lease"].as_str().filter(|lease| !lease.is_empty()).map(str::to_owned);
        Some((request["id"].as_str()?.to_owned(), lease))
    };
    Ok(View {
        at,
        active: leases.iter().filter(in_force).map(|lease| (lease.request.clone(), lease.id.clone())).collect(),
        requests: requests.iter().filter_map(of).collect(),
    })
}
