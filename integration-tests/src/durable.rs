//! Measures durable writes of Comity's broker group and of etcd, on the same disk. Each client waits for its answer.
//!
//! ```text
//!   for each pair, for each number of clients:  start one store ─▶ warm up ─▶ count ─▶ stop it, then the other
//! ```
//!
//! Each measurement starts with an empty store, so that both hold the same amount. Each client has its own connection
//! to the leader. The stores alternate in going first, because a disk or a neighbour may be slower for a while.

mod durable_report;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use comity_testkit::{Binaries, Needs};
use tokio::task::JoinSet;

use crate::process::usage::processor_time;
use crate::statistics::percentile;
use crate::stores::{Client, ComityStore, EtcdStore, MAX_WRITES, Store};

pub use durable_report::DurableReport;
use durable_report::Pair;

/// Warm-up before measuring, for connections and caches.
const WARM_UP: Duration = Duration::from_secs(1);
/// Timeout of one write, against hanging.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// Failed writes that one measurement tolerates, as during an election; each is retried.
const MAX_FAILED: u64 = 100;
/// Interval before a retry.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Number of disk syncs for the median.
const SYNCS: usize = 200;

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub struct DurableConfig {
    /// Numbers of concurrent clients, one per row.
    pub clients: Vec<usize>,
    /// Measurements of each store per row.
    pub pairs: usize,
    /// Duration of each measurement, without the warm-up.
    pub length: Duration,
}

/// Runs all measurements; `progress` receives messages.
///
/// # Errors
/// When a store does not start, or writes keep failing.
pub async fn run(config: &DurableConfig, progress: impl Fn(&str)) -> Result<DurableReport> {
    let binaries = Binaries::ensure(Needs::Etcd).await?;
    let mut report = DurableReport { sync_ms: disk_sync_ms()?, ..DurableReport::default() };
    for number in 0..config.pairs {
        for clients in config.clients.iter().copied() {
            let comity_first = number % 2 == 0;
            let etcd = if comity_first { None } else { Some(of_etcd(&binaries, clients, config.length).await?) };
            let comity = measure(ComityStore::start().await?, clients, config.length).await?;
            let etcd = match etcd {
                Some(etcd) => etcd,
                None => of_etcd(&binaries, clients, config.length).await?,
            };
            progress(&format!("pair {}, {clients} clients: comity {comity}; etcd {etcd}", number + 1));
            report.pairs.entry(clients).or_default().push(Pair { comity, etcd });
        }
    }
    Ok(report)
}

async fn of_etcd(binaries: &Binaries, clients: usize, length: Duration) -> Result<Measured> {
    measure(EtcdStore::start(binaries).await?, clients, length).await
}

/// The result of one measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) per_second: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// Cores that the clients kept busy, on average.
    pub(crate) client_cores: f64,
    /// Cores that the members kept busy, all together.
    pub(crate) member_cores: f64,
    pub(crate) failed: u64,
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { per_second, p50_ms, p99_ms, .. } = self;
        write!(f, "{per_second:.0}/s, p50 {p50_ms:.2} ms, p99 {p99_ms:.1} ms")
    }
}

/// State shared by all clients of a measurement.
struct Load {
    next: AtomicU64,
    failed: AtomicU64,
    counts_from: Instant,
    until: Instant,
}

async fn measure<S: Store>(store: S, clients: usize, length: Duration) -> Result<Measured> {
    let outcome = drive(&store, clients, length).await;
    outcome.with_context(|| format!("{} with {clients} clients{}", S::NAME, store.logs()))
}

async fn drive<S: Store>(store: &S, clients: usize, length: Duration) -> Result<Measured> {
    let leader = store.leader().await?;
    let counts_from = Instant::now() + WARM_UP;
    let until = counts_from + length;
    let (next, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    let shared = Arc::new(Load { next, failed, counts_from, until });
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        tasks.spawn(write(store.client_of(leader)?, Arc::clone(&shared)));
    }
    tokio::time::sleep_until(counts_from.into()).await;
    let (own, members) = busy(store)?;
    let mut took = Vec::new();
    while let Some(times) = tasks.join_next().await {
        took.extend(times??);
    }
    // Measured until the queue was full: a broker group bounds it.
    let seconds = Instant::now().min(until).duration_since(counts_from).as_secs_f64();
    let (own_after, members_after) = busy(store)?;
    ensure!(!took.is_empty(), "no write was acknowledged within {length:?}");
    took.sort_unstable();
    Ok(Measured {
        per_second: took.len() as f64 / seconds,
        p50_ms: percentile(&took, 50),
        p99_ms: percentile(&took, 99),
        client_cores: (own_after - own).as_secs_f64() / seconds,
        member_cores: (members_after - members).as_secs_f64() / seconds,
        failed: shared.failed.load(Ordering::Relaxed),
    })
}

/// Runs one client; returns the times of its acknowledged writes after the warm-up.
async fn write<C: Client>(client: C, shared: Arc<Load>) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    loop {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        if began >= shared.until || number >= MAX_WRITES {
            return Ok(took);
        }
        while let Err(error) = client.write(number, WRITE_TIMEOUT).await {
            if shared.failed.fetch_add(1, Ordering::Relaxed) >= MAX_FAILED {
                return Err(error.context("writes keep failing"));
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        let now = Instant::now();
        if began >= shared.counts_from && now <= shared.until {
            took.push(now - began);
        }
    }
}

/// Processor time of this process and of the members so far.
fn busy(store: &impl Store) -> Result<(Duration, Duration)> {
    let members = store.pids().into_iter().map(processor_time).sum::<Result<Duration>>()?;
    Ok((processor_time(std::process::id())?, members))
}

/// Median milliseconds of appending 4 KiB and fdatasync, on the disk of the stores.
fn disk_sync_ms() -> Result<f64> {
    use std::io::Write as _;
    let mut file = tempfile::tempfile_in(Path::new(&std::env::temp_dir()))?;
    let mut took = Vec::new();
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&[1; 4_096])?;
        file.sync_data()?;
        took.push(began.elapsed());
    }
    took.sort_unstable();
    Ok(percentile(&took, 50))
}
