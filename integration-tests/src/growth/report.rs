//! The report of a growth measurement.

use std::fmt;

use serde::Serialize;

/// What was seen. Bytes are the broker's alone; seconds are by the clock.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// GPUs that donors offer.
    pub gpus: u32,
    /// Nodes that they are in.
    pub nodes: usize,
    /// Donors.
    pub clusters: usize,
    /// Clusters that borrow.
    pub origins: usize,
    /// Leases that were active at the same time.
    pub leases: u32,
    /// Until all offers were acknowledged.
    pub offer_seconds: f64,
    /// Resident then.
    pub offered_resident_bytes: u64,
    /// From the first request to the last active lease.
    pub fill_seconds: f64,
    /// Resident at rest, with all leases active.
    pub resident_bytes: u64,
    /// The most that was ever resident, snapshots and listing included, until the kill.
    pub peak_resident_bytes: u64,
    /// One page of all offers, summed up.
    pub list_offers_seconds: f64,
    /// All pages of all leases.
    pub list_leases_seconds: f64,
    /// One renewal after the other: half of them took at most so long.
    pub renewal_p50_ms: f64,
    /// 99 of 100.
    pub renewal_p99_ms: f64,
    /// To take a snapshot, until it was on disk.
    pub snapshot_seconds: f64,
    /// Of that, how long nothing was applied.
    pub snapshot_held_up_ms: f64,
    /// No snapshot of the run held anybody up for longer: an upper end of the broker's histogram.
    pub snapshot_most_held_up_ms: f64,
    /// Bytes of that file.
    pub snapshot_bytes: u64,
    /// Until an offer in which one node had changed was acknowledged.
    pub revise_seconds: f64,
    /// From the start of the process after kill -9 to the first answered read.
    pub restore_seconds: f64,
    /// Leases that were there then.
    pub restored_leases: usize,
    /// Resident then.
    pub restored_resident_bytes: u64,
    /// The most that was resident on the way there.
    pub restore_peak_resident_bytes: u64,
    /// Until all clusters had connected again, seen all leases, and sent whole offers in which every node had changed.
    pub resync_seconds: f64,
    /// From the first release until all leases had ended.
    pub release_seconds: f64,
    /// Resident at rest after that.
    pub released_resident_bytes: u64,
    /// Reports of clusters that the broker refused.
    pub refused_reports: u64,
}

impl Report {
    /// Leases that became active in a second, from request to active.
    #[must_use]
    pub fn leases_per_second(&self) -> f64 {
        f64::from(self.leases) / self.fill_seconds.max(f64::MIN_POSITIVE)
    }

    /// One JSON object.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["leases_per_second"] = self.leases_per_second().into();
        value
    }
}

impl fmt::Display for Report {
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
