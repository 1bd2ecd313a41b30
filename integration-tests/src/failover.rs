//! Measures the time without writes after the leader dies, of Comity's broker group and of etcd, on the same disk.
//!
//! ```text
//!   writers write ─▶ SIGKILL the leader ─▶ next acknowledgement ─▶ restart it ─▶ healthy ─▶ the other store's turn
//! ```
//!
//! Both stores always run, but only one has load at a time. Writers find the next member by themselves. At the end
//! every acknowledged write is looked up on every member.

mod failover_report;
mod writers;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use comity_testkit::{Binaries, Needs};

use crate::stores::{ComityStore, EtcdStore, MEMBERS, Store};

pub use failover_report::FailoverReport;
use failover_report::Outcome;
use writers::Writers;

/// Duration of the load before each kill.
const LOAD_BEFORE_KILL: Duration = Duration::from_secs(1);

/// Kills each store's leader `kills` times; `progress` receives messages.
///
/// # Errors
/// When a store does not start or stops acknowledging writes.
pub async fn run(kills: u32, progress: impl Fn(&str)) -> Result<FailoverReport> {
    let binaries = Binaries::ensure(Needs::Etcd).await?;
    let mut comity = StoreRun::of(ComityStore::start().await?)?;
    let mut etcd = StoreRun::of(EtcdStore::start(&binaries).await?)?;
    for number in 1..=kills {
        let (first, second) = (comity.kill_leader().await?, etcd.kill_leader().await?);
        progress(&format!("kill {number}: comity {} ms, etcd {} ms", first.as_millis(), second.as_millis()));
    }
    Ok(FailoverReport { kills, comity: comity.finish().await?, etcd: etcd.finish().await? })
}

/// A store, its writers and its results.
struct StoreRun<S> {
    store: S,
    writers: Writers,
    took: Vec<Duration>,
}

impl<S: Store> StoreRun<S> {
    fn of(store: S) -> Result<Self> {
        let writers = Writers::start(&store)?;
        Ok(Self { store, writers, took: Vec::new() })
    }

    /// Kills the leader; returns the time until a write that began afterwards is acknowledged.
    async fn kill_leader(&mut self) -> Result<Duration> {
        let outcome = self.kill_once().await;
        let took = outcome.with_context(|| format!("{}{}", S::NAME, self.store.logs()))?;
        self.took.push(took);
        Ok(took)
    }

    async fn kill_once(&mut self) -> Result<Duration> {
        let leader = self.store.leader().await?;
        self.writers.go();
        tokio::time::sleep(LOAD_BEFORE_KILL).await;
        let killed = Instant::now();
        self.store.kill(leader).await?;
        let took = self.writers.next_acknowledgement(Instant::now()).await? - killed;
        self.store.restart(leader)?;
        self.store.leader().await?;
        self.writers.rest().await;
        Ok(took)
    }

    /// Looks up every acknowledged write on every member.
    async fn finish(self) -> Result<Outcome> {
        let acknowledged = self.writers.stop().await;
        let mut lost = BTreeSet::new();
        for member in 0..MEMBERS {
            let there = self.store.read_all(member).await.with_context(|| self.store.logs())?;
            lost.extend(acknowledged.iter().filter(|number| !there.contains(number)).copied());
        }
        Ok(Outcome { took: self.took, acknowledged: acknowledged.len(), lost: lost.len() })
    }
}
