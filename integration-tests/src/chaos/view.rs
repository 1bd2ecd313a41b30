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
const VIEW_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// One poll in this number also reads ended leases.
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
            for poll in 0_u32.. {
                let next = tokio::time::Instant::now() + VIEW_POLL_INTERVAL;
                let leases = if poll.is_multiple_of(ENDED_EVERY) { Scope::All } else { Scope::Current };
                // Without a quorum there is no answer.
                if let Ok(view) = poll_once(&comity, &ledger, leases).await {
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

/// Which leases or requests to read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scope {
    /// Those that have not ended.
    Current,
    /// Also those that have ended.
    All,
}

/// Reads leases into the ledger, and returns them.
pub(super) async fn read_leases(comity: &Comity, ledger: &SharedLedger, scope: Scope) -> Result<Vec<LeaseFacts>> {
    let list = list(comity, "lease", scope).await?;
    let leases: Vec<LeaseFacts> = items(&list)?.iter().map(LeaseFacts::read).collect::<Result<_>>()?;
    let revision = list["revision"].as_u64().context("a list has a revision")?;
    with(ledger, |ledger| ledger.leases_are(revision, leases.clone()));
    Ok(leases)
}

/// Requests with their states and leases.
pub(super) async fn read_requests(comity: &Comity, scope: Scope) -> Result<Vec<Value>> {
    Ok(items(&list(comity, "request", scope).await?)?.clone())
}

async fn list(comity: &Comity, what: &str, scope: Scope) -> Result<Value> {
    match scope {
        Scope::Current => comity.json("alice", &[what, "list"]).await,
        Scope::All => comity.json("alice", &[what, "list", "--all"]).await,
    }
}

async fn poll_once(comity: &Comity, ledger: &SharedLedger, leases: Scope) -> Result<View> {
    let at = Instant::now();
    let requests = read_requests(comity, Scope::Current).await?;
    let leases = read_leases(comity, ledger, leases).await?;
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
