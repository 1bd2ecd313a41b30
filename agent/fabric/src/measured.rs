//! Measures the best rate at which bytes arrive from other clusters through the tunnels: a lower bound of the
//! bandwidth.
//!
//! Passive: it counts received traffic, because sent bytes may be lost. A restart loses the result.

mod meter;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meter::Meter;

use crate::PeerHandle;

/// A rate is published again when it differs by this many eighths from the published one, because each time the whole
/// offer is sent.
const REPUBLISH_EIGHTHS: u64 = 2;
/// Most measured clusters: the limit of an offer, and of a fabric's tunnels.
const MAX_CLUSTERS: usize = 1_024;

/// Measured rate in Mbit/s from each cluster.
pub type Measured = BTreeMap<String, u64>;

/// The bytes received through one tunnel.
pub struct ReceivedBytes {
    /// The tunnel: its peering and epoch.
    pub tunnel: (String, u64),
    /// Cluster at its other end.
    pub cluster: String,
    /// Bytes since the tunnel was made.
    pub bytes: u64,
}

impl ReceivedBytes {
    /// Reads a tunnel's counter.
    #[must_use]
    pub fn of(peer: &PeerHandle) -> Self {
        let tunnel = (peer.peering().to_owned(), peer.epoch());
        Self { tunnel, cluster: peer.remote_cluster().to_owned(), bytes: peer.status().rx_bytes }
    }
}

/// Meters of all clusters; does no I/O.
#[derive(Debug, Default)]
pub struct Meters {
    tunnels: BTreeMap<(String, u64), u64>,
    clusters: BTreeMap<String, Meter>,
    published: Measured,
}

impl Meters {
    /// Records the counters of all tunnels at `at`, a monotonic time; returns the rates to publish.
    pub fn record(&mut self, at: Duration, arrived: impl IntoIterator<Item = ReceivedBytes>) -> &Measured {
        let (mut tunnels, mut more) = (BTreeMap::new(), Measured::new());
        for ReceivedBytes { tunnel, cluster, bytes } in arrived.into_iter().take(MAX_CLUSTERS) {
            // A tunnel's bytes before its first reading have no known duration.
            let before = self.tunnels.get(&tunnel).copied().unwrap_or(bytes);
            let sum = more.entry(cluster).or_default();
            *sum = sum.saturating_add(bytes.saturating_sub(before));
            tunnels.insert(tunnel, bytes);
        }
        self.tunnels = tunnels;
        let seen: BTreeSet<String> = more.keys().cloned().collect();
        for (cluster, meter) in &mut self.clusters {
            meter.record(at, more.remove(cluster).unwrap_or(0));
        }
        let room = MAX_CLUSTERS.saturating_sub(self.clusters.len());
        for (cluster, bytes) in more.into_iter().take(room) {
            self.clusters.entry(cluster).or_default().record(at, bytes);
        }
        self.clusters.retain(|cluster, meter| meter.mbits().is_some() || seen.contains(cluster));
        let best = self.clusters.iter().filter_map(|(cluster, meter)| Some((cluster.clone(), meter.mbits()?)));
        let to_publish = |(cluster, mbits): (String, u64)| {
            let published =
                self.published.get(&cluster).copied().filter(|published| !is_worth_publishing(*published, mbits));
            (cluster, published.unwrap_or(mbits))
        };
        self.published = best.map(to_publish).collect();
        &self.published
    }

    /// The best rate of each cluster in Mbit/s, whether or not a change is worth publishing.
    pub fn exact(&self) -> impl Iterator<Item = (&str, u64)> {
        self.clusters.iter().filter_map(|(cluster, meter)| Some((cluster.as_str(), meter.mbits()?)))
    }
}

fn is_worth_publishing(published: u64, mbits: u64) -> bool {
    let step = (published / 8).saturating_mul(REPUBLISH_EIGHTHS).max(1);
    mbits.abs_diff(published) >= step
}
