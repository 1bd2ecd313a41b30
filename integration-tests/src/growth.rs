//! Measures how large a federation one broker holds: a real broker, simulated donors, and active leases on them.
//!
//! ```text
//!   donors offer ─▶ tenants submit, clusters accept ─▶ all active: rest, list, renew ─▶ kill -9 ─▶ start ─▶ all there?
//! ```
//!
//! Clusters are simulated up to the wire: they join with tokens, keep an agent's stream, and report on every peering
//! and lease as an agent does. The broker is the released program, on this machine's disk.

mod borrower;
mod demand;
mod growth_policy;
mod growth_report;
pub(crate) mod inventory;
pub(crate) mod member;
mod messages;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use comity_proto::v1;
use comity_runtime::BrokerEndpoints;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::sync::watch;

use crate::federation::broker_api::user_channel;
use crate::federation::{Federation, FederationConfig};
use crate::process::place::Place;
use crate::process::usage::memory;
use crate::wait::{PATIENCE, until};
use borrower::Borrower;
use growth_policy::write_policy;
use member::Member;

pub use demand::GPUS_PER_LEASE;
pub use growth_report::GrowthReport;

/// Number of the broker.
const BROKER: u64 = 1;
/// Maximum nodes per offer.
pub const MAX_NODES_PER_CLUSTER: u32 = 10_000;
/// Maximum leases of a broker.
pub const MAX_LEASES: u32 = 200_000;
/// Number of clusters that borrow; each forms a peering with every donor.
const ORIGINS: usize = 20;
/// Maximum number of requests without an active lease, which keeps each cluster's backlog within its bounds.
const MAX_PENDING_REQUESTS: u64 = 4_000;
/// The run fails after this time without a new active lease or snapshot.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(600);
/// Number of sequential renewals for the percentiles.
const RENEWALS: usize = 200;
/// Maximum concurrent offers; each takes about ten megabytes.
const CONCURRENT_OFFERS: usize = 2;

/// The parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct GrowthConfig {
    /// Total GPUs of all donors, a multiple of eight.
    pub gpus: u32,
    /// Active leases to reach, at most one per [`GPUS_PER_LEASE`] GPUs.
    pub leases: u32,
    /// Nodes of eight GPUs that each donor offers.
    pub nodes_per_cluster: u32,
    /// Log entries between two snapshots.
    pub snapshot_every: u64,
    /// Idle time before the broker's memory is read.
    pub rest: Duration,
}

impl GrowthConfig {
    /// # Errors
    /// Names the value out of range and the allowed values.
    fn check(&self) -> Result<()> {
        let Self { gpus, leases, nodes_per_cluster, .. } = *self;
        ensure!(gpus >= 8 && gpus.is_multiple_of(8), "{gpus} GPUs are not nodes of eight: use a multiple of 8");
        let most = (gpus / GPUS_PER_LEASE).min(MAX_LEASES);
        ensure!((1..=most).contains(&leases), "{leases} leases do not fit on {gpus} GPUs: use 1 to {most}");
        ensure!(
            (1..=MAX_NODES_PER_CLUSTER).contains(&nodes_per_cluster),
            "{nodes_per_cluster} nodes cannot be in one offer: use 1 to {MAX_NODES_PER_CLUSTER}"
        );
        Ok(())
    }

    /// Nodes of each donor.
    fn nodes(&self) -> Vec<usize> {
        let (nodes, each) = ((self.gpus / inventory::GPUS_PER_NODE) as usize, self.nodes_per_cluster as usize);
        (0..nodes.div_ceil(each)).map(|number| each.min(nodes - number * each)).collect()
    }
}

/// Runs the measurement; `progress` receives messages.
///
/// # Errors
/// When a size is out of range, a process does not start, or a lease is missing at the end.
pub async fn run(config: &GrowthConfig, progress: impl Fn(&str)) -> Result<GrowthReport> {
    config.check()?;
    let mut run = GrowthRun::start(config).await?;
    let mut report = GrowthReport { gpus: config.gpus, leases: config.leases, ..GrowthReport::default() };
    let result = run.measure(&mut report, &progress).await;
    result.with_context(|| format!("the broker's log ends\n{}", run.federation.logs()))?;
    Ok(report)
}

struct GrowthRun<'a> {
    config: &'a GrowthConfig,
    federation: Federation,
    borrower: Borrower,
    nodes: Vec<usize>,
    members: Vec<Member>,
    /// Whether clusters may connect.
    open: watch::Sender<bool>,
    _policy: tempfile::TempDir,
}

impl<'a> GrowthRun<'a> {
    async fn start(config: &'a GrowthConfig) -> Result<Self> {
        let nodes = config.nodes();
        let policy = tempfile::tempdir()?;
        write_policy(policy.path(), nodes.len(), ORIGINS)?;
        let federation = Federation::start(FederationConfig {
            brokers: 1,
            policy: policy.path().to_owned(),
            place: Place::here(),
            snapshot_every: config.snapshot_every,
            cluster_certificates_s: 86_400,
            hosts: Vec::new(),
            ca: None,
        })
        .await?;
        let brokers = BrokerEndpoints::new(federation.broker_addresses())?;
        let user = |name: &str| user_channel(federation.dir(), name, &brokers);
        let borrower = Borrower::new(user("alice")?, user("admin")?, ORIGINS);
        Ok(Self {
            config,
            borrower,
            nodes,
            members: Vec::new(),
            open: watch::Sender::new(true),
            federation,
            _policy: policy,
        })
    }

    async fn measure(&mut self, report: &mut GrowthReport, progress: &impl Fn(&str)) -> Result<()> {
        report.nodes = self.nodes.iter().sum();
        report.clusters = self.nodes.len();
        report.origins = ORIGINS;
        progress("clusters join and offer");
        self.join().await?;
        report.offer_seconds = timed(self.offer_all(1)).await?;
        report.offered_resident_bytes = self.resident()?;

        report.fill_seconds = timed(self.fill(progress)).await?;
        progress("at rest");
        tokio::time::sleep(self.config.rest).await;
        report.resident_bytes = self.resident()?;
        report.peak_resident_bytes = memory(self.pid()?, "VmHWM")?;

        progress("lists");
        report.list_offers_seconds = timed(self.borrower.list_offers(self.nodes.len())).await?;
        let began = Instant::now();
        let leases = self.borrower.list_leases().await?;
        report.list_leases_seconds = began.elapsed().as_secs_f64();
        ensure!(leases.len() == self.config.leases as usize, "{} leases are listed", leases.len());

        progress("renewals, until there is a snapshot");
        let renewed = self.borrower.renew_one_by_one(&leases, RENEWALS).await?;
        (report.renewal_p50_ms, report.renewal_p99_ms) = renewed;
        self.snapshot(&leases, report).await?;
        report.revise_seconds = timed(self.revise()).await?;
        report.peak_resident_bytes = memory(self.pid()?, "VmHWM")?;

        progress("kill -9, and a new start");
        report.restore_seconds = self.restart(leases.last().context("there are leases")?).await?;
        report.restored_leases = self.borrower.list_leases().await?.len();
        report.restored_resident_bytes = self.resident()?;
        report.restore_peak_resident_bytes = memory(self.pid()?, "VmHWM")?;
        ensure!(
            report.restored_leases == leases.len(),
            "of {} leases {} are back",
            leases.len(),
            report.restored_leases
        );

        progress("all clusters connect, and offer again");
        report.resync_seconds = timed(self.resync()).await?;
        progress("all leases are released");
        report.release_seconds = timed(self.release(&leases, progress)).await?;
        tokio::time::sleep(self.config.rest).await;
        report.released_resident_bytes = self.resident()?;
        report.refused_reports =
            self.members.iter().map(|member| member.progress.refused.load(Ordering::Relaxed)).sum();
        Ok(())
    }

    fn pid(&self) -> Result<u32> {
        self.federation.broker_pid(BROKER).context("the broker runs")
    }

    fn resident(&self) -> Result<u64> {
        memory(self.pid()?, "VmRSS")
    }

    /// Makes all clusters members and starts their streams.
    async fn join(&mut self) -> Result<()> {
        let names = (0..self.nodes.len()).map(growth_policy::donor).chain((0..ORIGINS).map(growth_policy::origin));
        let joins = names.map(|name| {
            let (borrower, open) = (self.borrower.clone(), self.open.subscribe());
            async move { Member::join(&name, &borrower.invite(&name).await?, open).await }
        });
        self.members = futures::stream::iter(joins).buffered(8).try_collect().await?;
        for origin in &self.members[self.nodes.len()..] {
            origin.offer(inventory::nothing(&origin.name)).await?;
        }
        Ok(())
    }

    /// Sends a full offer of every donor.
    async fn offer_all(&self, generation: u64) -> Result<()> {
        let donors = self.members.iter().zip(&self.nodes).enumerate();
        let offers = donors
            .map(|(number, (donor, nodes))| donor.offer(inventory::offer(number, &donor.name, *nodes, generation)));
        futures::stream::iter(offers).buffer_unordered(CONCURRENT_OFFERS).try_collect().await
    }

    /// Changes one node of one donor.
    async fn revise(&self) -> Result<()> {
        let (donor, nodes) = (self.members.first().context("a donor")?, self.nodes.first().context("a donor")?);
        let mut offer = v1::Offer { generation: 2, ..inventory::offer(0, &donor.name, *nodes, 1) };
        offer.nodes.first_mut().context("a node")?.local_cpu_milli += 1;
        donor.offer(offer).await
    }

    fn active(&self) -> u64 {
        self.members.iter().map(|member| member.progress.active.load(Ordering::Relaxed)).sum()
    }

    /// Requests all leases and waits until they are active.
    async fn fill(&self, progress: &impl Fn(&str)) -> Result<()> {
        let leases = u64::from(self.config.leases);
        let in_turn = futures::stream::iter(0..leases).map(|number| async move {
            while number.saturating_sub(self.active()) >= MAX_PENDING_REQUESTS {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            self.borrower.submit(number).await
        });
        let submit = in_turn.buffer_unordered(borrower::CONCURRENT_CALLS).try_collect::<()>();
        let follow = async {
            let (mut last, mut since) = (0, Instant::now());
            while last < leases {
                tokio::time::sleep(Duration::from_millis(20)).await;
                let active = self.active();
                if active != last {
                    (last, since) = (active, Instant::now());
                    progress(&format!("{active} of {leases} leases are active"));
                }
                if since.elapsed() > PROGRESS_TIMEOUT {
                    bail!("{active} of {leases} leases became active, and no further one within {PROGRESS_TIMEOUT:?}");
                }
            }
            anyhow::Ok(())
        };
        futures::try_join!(submit, follow).map(drop)
    }

    /// Renews leases until the broker makes another snapshot.
    async fn snapshot(&self, leases: &[String], report: &mut GrowthReport) -> Result<()> {
        let made = async || self.federation.broker_metrics(BROKER).await.map(|text| Snapshots::of(&text));
        let (before, began) = (made().await?, Instant::now());
        let mut round = 0;
        loop {
            let after = made().await?;
            if after.count > before.count {
                // With several snapshots, takes their mean.
                let made = after.count - before.count;
                report.snapshot_seconds = (after.seconds - before.seconds) / made;
                report.snapshot_held_up_ms = (after.held_up - before.held_up) / made * 1_000.0;
                report.snapshot_most_held_up_ms = after.most_held_up * 1_000.0;
                report.snapshot_bytes = after.bytes as u64;
                return Ok(());
            }
            // The broker pauses between snapshots.
            ensure!(
                began.elapsed() < PROGRESS_TIMEOUT,
                "no snapshot after {round} renewals within {PROGRESS_TIMEOUT:?}"
            );
            self.borrower.renew(leases, round, 250).await?;
            round += 250;
        }
    }

    /// Seconds from the start of the process to its first answer.
    async fn restart(&mut self, lease: &str) -> Result<f64> {
        self.open.send_replace(false);
        self.federation.kill_broker(BROKER).await?;
        let began = Instant::now();
        self.federation.start_broker(BROKER)?;
        until("the broker to answer", PATIENCE, async || Ok(self.borrower.show(lease).await.ok())).await?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Reconnects all clusters, waits until they know their leases, and sends full offers again.
    async fn resync(&self) -> Result<()> {
        for member in &self.members {
            member.progress.active.store(0, Ordering::Relaxed);
        }
        self.open.send_replace(true);
        self.offer_all(3).await?;
        let leases = u64::from(self.config.leases);
        until("all leases to be seen", PATIENCE, async || Ok((self.active() == leases).then_some(()))).await
    }

    /// Releases all leases and waits until every cluster has finished the teardown.
    async fn release(&self, leases: &[String], progress: &impl Fn(&str)) -> Result<()> {
        let releases = futures::stream::iter(leases).enumerate().map(|(number, lease)| async move {
            if number.is_multiple_of(1_000) {
                progress(&format!("{number} of {} leases are released", leases.len()));
            }
            self.borrower.release(lease).await
        });
        releases.buffer_unordered(borrower::CONCURRENT_CALLS).try_collect::<()>().await?;
        until("all leases to end", PATIENCE, async || {
            let held: u64 = self.members.iter().map(|member| member.progress.held.load(Ordering::Relaxed)).sum();
            Ok((held == 0).then_some(()))
        })
        .await
    }
}

/// Snapshot statistics from a broker's metrics.
#[derive(Debug, Default)]
struct Snapshots {
    count: f64,
    seconds: f64,
    held_up: f64,
    /// Upper end of the histogram bucket with the longest pause.
    most_held_up: f64,
    bytes: f64,
}

impl Snapshots {
    fn of(metrics: &str) -> Self {
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
        };
        Self {
            count: value("comity_broker_snapshot_seconds_count"),
            seconds: value("comity_broker_snapshot_seconds_sum"),
            held_up: value("comity_broker_snapshot_held_up_seconds_sum"),
            most_held_up: Self::most_held_up(metrics, value("comity_broker_snapshot_held_up_seconds_count")),
            bytes: value("comity_broker_snapshot_bytes"),
        }
    }

    fn most_held_up(metrics: &str, count: f64) -> f64 {
        let buckets = metrics.lines().filter_map(|line| {
            let bucket = line.strip_prefix("comity_broker_snapshot_held_up_seconds_bucket{le=\"")?;
            let (upper, held) = bucket.split_once("\"}")?;
            Some((upper.replace("+Inf", "inf").parse::<f64>().ok()?, held.trim().parse::<f64>().ok()?))
        });
        buckets.filter(|(_, held)| *held >= count).map(|(upper, _)| upper).fold(f64::INFINITY, f64::min)
    }
}

async fn timed(work: impl Future<Output = Result<()>>) -> Result<f64> {
    let began = Instant::now();
    work.await?;
    Ok(began.elapsed().as_secs_f64())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn config(gpus: u32, leases: u32, nodes_per_cluster: u32) -> GrowthConfig {
        GrowthConfig { gpus, leases, nodes_per_cluster, snapshot_every: 10_000, rest: Duration::ZERO }
    }

    #[test]
    fn the_last_donor_has_the_remaining_nodes() {
        assert_eq!(config(1_000_000, 1, 5_000).nodes(), [5_000; 25]);
        assert_eq!(config(88, 1, 4).nodes(), [4, 4, 3]);
    }

    #[test]
    fn impossible_sizes_are_refused_with_the_allowed_ones() {
        config(8_000, 1_600, 10_000).check().unwrap();
        for (bad, remedy) in [
            (config(7, 1, 1), "use a multiple of 8"),
            (config(0, 1, 1), "use a multiple of 8"),
            (config(8_000, 1_601, 1), "use 1 to 1600"),
            (config(8_000, 0, 1), "use 1 to 1600"),
            (config(80_000_000, 200_001, 1), "use 1 to 200000"),
            (config(8_000, 1, 10_001), "use 1 to 10000"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.ends_with(remedy), "{error}");
        }
    }

    #[test]
    fn snapshots_are_read_from_metrics() {
        let text = "# HELP comity_broker_snapshot_bytes x\ncomity_broker_snapshot_bytes 42\n\
                    comity_broker_snapshot_seconds_bucket{le=\"1\"} 2\n\
                    comity_broker_snapshot_seconds_sum 1.5\ncomity_broker_snapshot_seconds_count 3\n";
        let read = Snapshots::of(text);
        assert_eq!((read.count, read.seconds, read.bytes), (3.0, 1.5, 42.0));
        assert_eq!(Snapshots::of("").count, 0.0);
    }

    #[test]
    fn the_longest_of_all_snapshots_is_in_the_last_bucket_that_grows() {
        let name = "comity_broker_snapshot_held_up_seconds";
        let text = |at_20_ms: u32| {
            format!(
                "{name}_bucket{{le=\"0.001\"}} 2\n{name}_bucket{{le=\"0.02\"}} {at_20_ms}\n\
                 {name}_bucket{{le=\"+Inf\"}} 3\n{name}_count 3\n"
            )
        };
        assert_eq!(Snapshots::of(&text(3)).most_held_up, 0.02);
        assert_eq!(Snapshots::of(&text(2)).most_held_up, f64::INFINITY);
    }
}
