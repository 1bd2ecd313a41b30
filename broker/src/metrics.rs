//! Prometheus metrics. All names begin with `comity_broker_`.

use comity_core::reply::Applied;
use comity_core::{Refusal, State};
use comity_types::LeaseState;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use crate::group::{ClockStatus, Unavailable};
use crate::storage::SnapshotMade;

/// From half a millisecond, a local commit, to five seconds, the deadline of a proposal.
const COMMIT_BUCKETS: [f64; 13] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

/// From ten milliseconds, a small state, to two minutes, more than any state takes.
const SNAPSHOT_BUCKETS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];

/// From a tenth of a millisecond, many chunks of state, over the 20 ms that are promised to one second.
const HELD_UP_BUCKETS: [f64; 10] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.1, 1.0];

/// The counters and gauges. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    proposals: IntCounterVec,
    commit_seconds: HistogramVec,
    plan_seconds: Histogram,
    entries_applied: IntCounter,
    revision: IntGauge,
    queued: IntGauge,
    leases: IntGaugeVec,
    reclaims: IntCounterVec,
    reclaim_limited: IntGauge,
    policy_pulls: IntCounterVec,
    policy_behind: IntGauge,
    audit_export_lag: IntGauge,
    audit_export_failures: IntCounter,
    audit_records_rejected: IntCounter,
    clusters_connected: IntGauge,
    agent_streams: IntGauge,
    watchers: IntGauge,
    leader: IntGauge,
    calls_refused: IntCounterVec,
    snapshot_seconds: Histogram,
    snapshot_held_up_seconds: Histogram,
    snapshot_bytes: IntGauge,
    clock_offset_seconds: Gauge,
    log_time_offset_seconds: Gauge,
    ca_intermediate_not_after_seconds: IntGauge,
}

impl Metrics {
    /// Creates the metrics in a registry of their own, so that several brokers can run in one process.
    ///
    /// # Panics
    /// Never: the names are constants, valid and different.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new_custom(Some("comity_broker".to_owned()), None).expect("the prefix is valid");
        let metrics = Self {
            proposals: counters("proposals_total", "Commands proposed here, by outcome.", &["command", "outcome"]),
            commit_seconds: HistogramVec::new(
                HistogramOpts::new("commit_seconds", "From proposal to reply: log, replication and apply.")
                    .buckets(COMMIT_BUCKETS.to_vec()),
                &["command"],
            )
            .expect("a valid histogram"),
            plan_seconds: Histogram::with_opts(
                HistogramOpts::new("plan_seconds", "One run of the scheduler.").buckets(COMMIT_BUCKETS.to_vec()),
            )
            .expect("a valid histogram"),
            entries_applied: counter("entries_applied_total", "Log entries applied on this broker."),
            revision: gauge("revision", "Revision of the state on this broker."),
            queued: gauge("requests_queued", "Requests that wait for a donor."),
            leases: IntGaugeVec::new(Opts::new("leases", "Leases that have not ended, by state."), &["state"])
                .expect("a valid gauge"),
            reclaims: counters("reclaims_total", "Leases that this broker, as leader, had reclaimed.", &["reason"]),
            reclaim_limited: gauge(
                "reclaim_limited_donors",
                "Donors whose local work waits because of a limit on reclaims.",
            ),
            policy_pulls: counters(
                "policy_pulls_total",
                "Pulls of the policy by this broker, as leader, by outcome.",
                &["outcome"],
            ),
            policy_behind: gauge(
                "policy_source_behind",
                "1 on a leader whose last pull could not bring the head of the policy's branch into force, 0 elsewhere.",
            ),
            audit_export_lag: gauge(
                "audit_export_lag_records",
                "Records of the audit log that the collector of --audit-otlp lacks; 0 on brokers that do not lead.",
            ),
            audit_export_failures: counter(
                "audit_export_failures_total",
                "Tries of this broker to send records of the audit log that failed; it tries again.",
            ),
            audit_records_rejected: counter(
                "audit_records_rejected_total",
                "Records of the audit log that the collector rejected for good.",
            ),
            clusters_connected: gauge("clusters_connected", "Clusters that are heard, as the state has it."),
            agent_streams: gauge("agent_streams", "Agents connected to this broker."),
            watchers: gauge("watchers", "Watch streams of this broker."),
            leader: gauge("leader", "1 on the leader, 0 elsewhere."),
            calls_refused: counters("calls_refused_total", "Calls refused before they were carried out.", &["code"]),
            snapshot_seconds: Histogram::with_opts(
                HistogramOpts::new("snapshot_seconds", "To take a snapshot, from the copy of the state to the fsync.")
                    .buckets(SNAPSHOT_BUCKETS.to_vec()),
            )
            .expect("a valid histogram"),
            snapshot_held_up_seconds: Histogram::with_opts(
                HistogramOpts::new("snapshot_held_up_seconds", "Of that, the copy, during which no entry is applied.")
                    .buckets(HELD_UP_BUCKETS.to_vec()),
            )
            .expect("a valid histogram"),
            snapshot_bytes: gauge("snapshot_bytes", "Size of the newest snapshot that this broker took."),
            clock_offset_seconds: seconds(
                "clock_offset_seconds",
                "This broker's wall clock minus the median of a majority's; NaN where no majority is reached.",
            ),
            log_time_offset_seconds: seconds(
                "log_time_offset_seconds",
                "Log time minus the median of the wall clocks of a majority; NaN where no majority is reached.",
            ),
            ca_intermediate_not_after_seconds: gauge(
                "ca_intermediate_not_after_seconds",
                "When the intermediate that issues certificates here ends, in Unix time.",
            ),
            registry,
        };
        metrics.register();
        metrics
    }

    fn register(&self) {
        let all: [Box<dyn prometheus::core::Collector>; 26] = [
            Box::new(self.proposals.clone()),
            Box::new(self.commit_seconds.clone()),
            Box::new(self.plan_seconds.clone()),
            Box::new(self.entries_applied.clone()),
            Box::new(self.revision.clone()),
            Box::new(self.queued.clone()),
            Box::new(self.leases.clone()),
            Box::new(self.reclaims.clone()),
            Box::new(self.reclaim_limited.clone()),
            Box::new(self.policy_pulls.clone()),
            Box::new(self.policy_behind.clone()),
            Box::new(self.audit_export_lag.clone()),
            Box::new(self.audit_export_failures.clone()),
            Box::new(self.audit_records_rejected.clone()),
            Box::new(self.clusters_connected.clone()),
            Box::new(self.agent_streams.clone()),
            Box::new(self.watchers.clone()),
            Box::new(self.leader.clone()),
            Box::new(self.calls_refused.clone()),
            Box::new(self.snapshot_seconds.clone()),
            Box::new(self.snapshot_held_up_seconds.clone()),
            Box::new(self.snapshot_bytes.clone()),
            Box::new(self.clock_offset_seconds.clone()),
            Box::new(self.log_time_offset_seconds.clone()),
            Box::new(self.ca_intermediate_not_after_seconds.clone()),
            Box::new(self.build_info()),
        ];
        for collector in all {
            self.registry.register(collector).expect("each name is registered once");
        }
    }

    fn build_info(&self) -> IntGaugeVec {
        let info = IntGaugeVec::new(Opts::new("build_info", "Always 1; the label says which release."), &["version"])
            .expect("a valid gauge");
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        info
    }

    /// For the admin server.
    #[must_use]
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Registers the log's own histogram of fsync times.
    pub fn show_log_syncs(&self, seconds: Histogram) {
        // The registry already has it only if a broker starts twice in one registry; the first one is then shown.
        let _ = self.registry.register(Box::new(seconds));
    }

    /// One entry was applied. Must be quick.
    pub fn applied(&self, state: &State, applied: &Applied) {
        self.entries_applied.inc();
        self.revision.set(i64::try_from(applied.revision).unwrap_or(i64::MAX));
        self.queued.set(i64::try_from(state.queued_len()).unwrap_or(i64::MAX));
    }

    /// The state was replaced.
    pub fn restored(&self, state: &State) {
        self.revision.set(i64::try_from(state.revision).unwrap_or(i64::MAX));
        self.queued.set(i64::try_from(state.queued_len()).unwrap_or(i64::MAX));
    }

    /// Updates gauges that need a pass over the state; call it on a copy, every few seconds.
    pub fn survey(&self, state: &State) {
        let names = ["placed", "connecting", "active", "suspect", "reclaiming", "ending"];
        let mut counts = [0; 6];
        for lease in state.leases.values() {
            let place = match lease.state {
                LeaseState::Placed => 0,
                LeaseState::Connecting => 1,
                LeaseState::Active => 2,
                LeaseState::Suspect => 3,
                LeaseState::Reclaiming => 4,
                LeaseState::Ending => 5,
                LeaseState::Ended => continue,
            };
            counts[place] += 1;
        }
        for (name, count) in names.into_iter().zip(counts) {
            self.leases.with_label_values(&[name]).set(count);
        }
        let connected = state.clusters.values().filter(|cluster| cluster.connected).count();
        self.clusters_connected.set(i64::try_from(connected).unwrap_or(i64::MAX));
    }

    /// Counts a pull of the policy.
    pub fn policy_pulled(&self, outcome: &str) {
        self.policy_pulls.with_label_values(&[outcome]).inc();
    }

    /// Shows, until dropped, how many records of the audit log the collector lacks.
    #[must_use]
    pub fn audit_export_lag(&self) -> AuditLag {
        AuditLag(self.audit_export_lag.clone())
    }

    /// Counts a failed try to send records of the audit log.
    pub fn audit_export_failed(&self) {
        self.audit_export_failures.inc();
    }

    /// Counts records of the audit log that the collector will not have.
    pub fn audit_records_rejected(&self, records: u64) {
        self.audit_records_rejected.inc_by(records);
    }

    /// Leases are being reclaimed for this reason.
    pub fn reclaimed(&self, reason: &'static str) {
        self.reclaims.with_label_values(&[reason]).inc();
    }

    /// Sets the number of donors whose local work waits because of a limit on reclaims.
    pub fn set_reclaim_limited(&self, donors: usize) {
        self.reclaim_limited.set(i64::try_from(donors).unwrap_or(i64::MAX));
    }

    /// Updates the clock gauges.
    pub fn clocks(&self, clocks: &ClockStatus) {
        let in_seconds = |ms: Option<i64>| ms.map_or(f64::NAN, |ms| ms as f64 / 1_000.0);
        self.clock_offset_seconds.set(in_seconds(clocks.clock_offset_ms));
        self.log_time_offset_seconds.set(in_seconds(clocks.log_time_offset_ms));
    }

    /// Sets when the intermediate ends, in Unix time.
    pub fn authority_ends(&self, unix_seconds: i64) {
        self.ca_intermediate_not_after_seconds.set(unix_seconds);
    }

    /// Counts a proposal and its duration by outcome.
    pub fn proposed(&self, command: &'static str, seconds: f64, outcome: &Result<Applied, Unavailable>) {
        let outcome = match outcome {
            Ok(Applied { reply: Ok(_), .. }) => "done",
            Ok(Applied { reply: Err(Refusal { code, .. }), .. }) => code.as_str(),
            Err(_) => "unavailable",
        };
        self.proposals.with_label_values(&[command, outcome]).inc();
        self.commit_seconds.with_label_values(&[command]).observe(seconds);
    }

    /// The scheduler ran.
    pub fn planned(&self, seconds: f64) {
        self.plan_seconds.observe(seconds);
    }

    /// A snapshot is on disk.
    pub fn snapshot_made(&self, made: &SnapshotMade) {
        self.snapshot_seconds.observe(made.took.as_secs_f64());
        self.snapshot_held_up_seconds.observe(made.held_up.as_secs_f64());
        self.snapshot_bytes.set(i64::try_from(made.bytes).unwrap_or(i64::MAX));
    }

    /// Counts a call refused before it was proposed; `code` is stable.
    pub fn refused(&self, code: &str) {
        self.calls_refused.with_label_values(&[code]).inc();
    }

    /// Whether this broker leads.
    pub fn set_leading(&self, leading: bool) {
        self.leader.set(i64::from(leading));
    }

    /// Counts an agent's stream until dropped.
    #[must_use]
    pub fn agent_stream(&self) -> Counted {
        Counted::new(&self.agent_streams)
    }

    /// Until dropped, the head of the policy's branch is not in force.
    #[must_use]
    pub fn policy_behind(&self) -> Counted {
        Counted::new(&self.policy_behind)
    }

    /// Counts a watcher until dropped.
    #[must_use]
    pub fn watcher(&self) -> Counted {
        Counted::new(&self.watchers)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// How many records of the audit log the collector lacks; 0 when dropped.
#[derive(Debug)]
pub struct AuditLag(IntGauge);

impl AuditLag {
    /// Sets the number.
    pub fn set(&self, records: u64) {
        self.0.set(i64::try_from(records).unwrap_or(i64::MAX));
    }
}

impl Drop for AuditLag {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

/// Decrements its gauge when dropped.
#[derive(Debug)]
pub struct Counted(IntGauge);

impl Counted {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn gauge(name: &str, help: &str) -> IntGauge {
    IntGauge::new(name, help).expect("a valid gauge")
}

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect("a valid counter")
}

fn seconds(name: &str, help: &str) -> Gauge {
    Gauge::new(name, help).expect("a valid gauge")
}

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect("a valid counter")
}
