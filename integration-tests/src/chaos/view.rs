//! Polls requests and leases from a quorum of the brokers once a second, for the ledger and the tenants.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::grants::{Books, with};
use super::ledger::LeaseFacts;
use crate::comity::{Comity, items};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// One look in so many is at what has ended, too.
const ENDED_EVERY: u32 = 10;

/// Requests and leases that have not ended.
#[derive(Debug)]
pub(super) struct View {
    /// When the look began.
    pub(super) at: Instant,
    /// Leases of requests, by request, where they have one that is in force.
    pub(super) active: BTreeMap<String, String>,
    /// All requests that have not ended, with their leases.
    pub(super) requests: BTreeMap<String, Option<String>>,
}

/// Looks again and again. Dropping it ends the looking.
pub(super) struct Looking {
    task: JoinHandle<()>,
    view: watch::Receiver<View>,
}

impl Looking {
    /// Begins to look.
    pub(super) fn start(comity: Comity, books: Books) -> Self {
        let nothing = View { at: Instant::now(), active: BTreeMap::new(), requests: BTreeMap::new() };
        let (tell, view) = watch::channel(nothing);
        let task = tokio::spawn(async move {
            for look in 0_u32.. {
                let next = tokio::time::Instant::now() + LOOK_EVERY;
                // While no quorum answers there is nothing to see.
                if let Ok(view) = look_once(&comity, &books, look.is_multiple_of(ENDED_EVERY)).await {
                    tell.send_replace(view);
                }
                tokio::time::sleep_until(next).await;
            }
        });
        Self { task, view }
    }

    /// Follows what is seen.
    pub(super) fn view(&self) -> watch::Receiver<View> {
        self.view.clone()
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads leases into the books; all of them, if `ended`. What it read.
pub(super) async fn read_leases(comity: &Comity, books: &Books, ended: bool) -> Result<Vec<LeaseFacts>> {
    let args: &[&str] = if ended { &["lease", "list", "--all"] } else { &["lease", "list"] };
    let list = comity.json("alice", args).await?;
    let leases: Vec<LeaseFacts> = items(&list)?.iter().map(LeaseFacts::read).collect::<Result<_>>()?;
    let revision = list["revision"].as_u64().context("a list has a revision")?;
    with(books, |ledger| ledger.leases_are(revision, leases.clone()));
    Ok(leases)
}

/// Requests with their states and leases.
pub(super) async fn read_requests(comity: &Comity, ended: bool) -> Result<Vec<Value>> {
    let args: &[&str] = if ended { &["request", "list", "--all"] } else { &["request", "list"] };
    Ok(items(&comity.json("alice", args).await?)?.clone())
}

async fn look_once(comity: &Comity, books: &Books, ended: bool) -> Result<View> {
    let at = Instant::now();
    let requests = read_requests(comity, false).await?;
    let leases = read_leases(comity, books, ended).await?;
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
