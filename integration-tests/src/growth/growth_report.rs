//! The report of a growth measurement.

use std::fmt;

use serde::Serialize;

/// The results. Bytes are the broker's memory; seconds are wall-clock time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GrowthReport {
    /// Offered GPUs.
    pub gpus: u32,
    /// Offered nodes.
    pub nodes: usize,
    /// Number of donors.
    pub clusters: usize,
    /// Number of clusters that borrow.
    pub origins: usize,
    /// Simultaneously active leases.
    pub leases: u32,
    /// Time until all offers were acknowledged.
    pub offer_seconds: f64,
    /// Resident then.
    pub offered_resident_bytes: u64,
    /// Time from the first request to the last active lease.
    pub fill_seconds: f64,
    /// Resident memory at rest, with all leases active.
    pub resident_bytes: u64,
    /// Peak resident memory until the kill, including snapshots and lists.
    pub peak_resident_bytes: u64,
    /// Time to list one page of offer summaries.
    pub list_offers_seconds: f64,
    /// Time to list all leases.
    pub list_leases_seconds: f64,
    /// Median of sequential renewals.
    pub renewal_p50_ms: f64,
    /// 99th percentile of sequential renewals.
    pub renewal_p99_ms: f64,
    /// Time of a snapshot until it is on disk.
    pub snapshot_seconds: f64,
    /// Part of that time in which nothing was applied.
    pub snapshot_held_up_ms: f64,
    /// Upper bound on the longest pause by a snapshot, from the broker's histogram.
    pub snapshot_most_held_up_ms: f64,
    /// Size of the snapshot in bytes.
    pub snapshot_bytes: u64,
    /// Time until an offer with one changed node was acknowledged.
    pub revise_seconds: f64,
    /// Time from the restart after SIGKILL to the first answered read.
    pub restore_seconds: f64,
    /// Leases after the restart.
    pub restored_leases: usize,
    /// Resident then.
    pub restored_resident_bytes: u64,
    /// Peak resident memory during the restart.
    pub restore_peak_resident_bytes: u64,
    /// Time until all clusters reconnected, saw all leases and sent full offers with changes in every node.
    pub resync_seconds: f64,
    /// Time from the first release until all leases had ended.
    pub release_seconds: f64,
    /// Resident memory at rest after that.
    pub released_resident_bytes: u64,
    /// Reports that the broker refused.
    pub refused_reports: u64,
}

impl GrowthReport {
    /// Leases per second, from request to active.
    #[must_use]
    pub fn leases_per_second(&self) -> f64 {
        f64::from(self.leases) / self.fill_seconds.max(f64::MIN_POSITIVE)
    }

    /// The report as one JSON object.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["leases_per_second"] = self.leases_per_second().into();
        value
    }
}

impl fmt::Display for GrowthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1_u32 << 20));
        let tenths = |seconds: f64| format!("{seconds:.1}");
        let thousandths = |seconds: f64| format!("{seconds:.3}");
        let rows = [
            ("GPUs", self.gpus.to_string()),
            ("nodes", self.nodes.to_string()),
            ("donors", self.clusters.to_string()),
            ("origins", self.origins.to_string()),
            ("leases, all active", self.leases.to_string()),
            ("leases/s, from request to active", format!("{:.0}", self.leases_per_second())),
            ("resident with all offers, MiB", mib(self.offered_resident_bytes)),
            ("resident with all leases, MiB", mib(self.resident_bytes)),
            ("most resident until then, MiB", mib(self.peak_resident_bytes)),
            ("snapshot, MiB", mib(self.snapshot_bytes)),
            ("a snapshot, s", tenths(self.snapshot_seconds)),
            ("held up by it, ms", thousandths(self.snapshot_held_up_ms)),
            ("held up by any, ms at most", thousandths(self.snapshot_most_held_up_ms)),
            ("kill -9, start, first answer, s", tenths(self.restore_seconds)),
            ("leases there then", self.restored_leases.to_string()),
            ("resident then, MiB", mib(self.restored_resident_bytes)),
            ("most resident on the way there, MiB", mib(self.restore_peak_resident_bytes)),
            ("all offers, s", tenths(self.offer_seconds)),
            ("an offer with one changed node, s", thousandths(self.revise_seconds)),
            ("all clusters connect and offer again, s", tenths(self.resync_seconds)),
            ("a renewal, p50, ms", tenths(self.renewal_p50_ms)),
            ("a renewal, p99, ms", tenths(self.renewal_p99_ms)),
            ("list of offers, s", thousandths(self.list_offers_seconds)),
            ("list of all leases, s", thousandths(self.list_leases_seconds)),
            ("all leases released, s", tenths(self.release_seconds)),
            ("resident after that, MiB", mib(self.released_resident_bytes)),
        ];
        for (name, value) in rows {
            writeln!(f, "{name:<42}{value:>12}")?;
        }
        Ok(())
    }
}
