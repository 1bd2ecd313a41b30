//! How long nobody can write when the leader dies: Comity's broker group beside etcd, on the same disk.
//!
//! ```text
//!   writers write ─▶ SIGKILL the leader ─▶ the next acknowledgement ─▶ start it again ─▶ healthy ─▶ the other store's turn
//! ```
//!
//! Both stores run all the time; only the one whose turn it is has load. Writers find the next member by themselves. In
//! the end every write that was acknowledged is looked for on each member.

mod report;
mod writers;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use comity_testkit::{Binaries, Needs};

use crate::stores::{ComityStore, EtcdStore, MEMBERS, Store};

use report::Outcome;
pub use report::Report;
use writers::Writers;

/// Load before each kill.
const CALM: Duration = Duration::from_secs(1);

/// Kills the leaders `kills` times; `progress` is told what happens.
///
/// # Errors
/// When a store does not come up, or nothing is acknowledged any more.
pub async fn run(kills: u32, progress: impl Fn(&str)) -> Result<Report> {
    let binaries = Binaries::ensure(Needs::Etcd).await?;
    let mut comity = Run::of(ComityStore::start().await?)?;
    let mut etcd = Run::of(EtcdStore::start(&binaries).await?)?;
    for number in 1..=kills {
        let (first, second) = (comity.kill_leader().await?, etcd.kill_leader().await?);
        progress(&format!("kill {number}: comity {} ms, etcd {} ms", first.as_millis(), second.as_millis()));
    }
    Ok(Report { kills, comity: comity.finish().await?, etcd: etcd.finish().await? })
}

/// A store, who writes to it, and what came out.
struct Run<S> {
    store: S,
    writers: Writers,
    took: Vec<Duration>,
}

impl<S: Store> Run<S> {
    fn of(store: S) -> Result<Self> {
        let writers = Writers::start(&store)?;
        Ok(Self { store, writers, took: Vec::new() })
    }

    /// One kill: the time from it to the next acknowledgement of a write that began after it.
    async fn kill_leader(&mut self) -> Result<Duration> {
        let outcome = self.kill_once().await;
        let took = outcome.with_context(|| format!("{}{}", S::NAME, self.store.logs()))?;
        self.took.push(took);
        Ok(took)
    }

    async fn kill_once(&mut self) -> Result<Duration> {
        let leader = self.store.leader().await?;
        self.writers.go();
        tokio::time::sleep(CALM).await;
        let killed = Instant::now();
        self.store.kill(leader).await?;
        let took = self.writers.next_acknowledgement(Instant::now()).await? - killed;
        self.store.restart(leader)?;
        self.store.leader().await?;
        self.writers.rest().await;
        Ok(took)
    }

    /// Looks for every acknowledged write on every member.
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
