//! Allows one live stream per cluster on this broker. A newer stream replaces the older one, which may be a dead
//! connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use comity_types::ClusterId;
use tokio_util::sync::CancellationToken;

type Live = BTreeMap<ClusterId, (u64, CancellationToken)>;

/// The streams of this broker. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct AgentStreams {
    live: Arc<Mutex<Live>>,
}

/// A cluster's slot for its stream; released on drop.
#[derive(Debug)]
pub struct Seat {
    streams: AgentStreams,
    cluster: ClusterId,
    number: u64,
    replaced: CancellationToken,
}

impl AgentStreams {
    /// Takes the cluster's slot; the previous stream is told to end.
    #[must_use]
    pub fn take(&self, cluster: &ClusterId) -> Seat {
        let replaced = CancellationToken::new();
        let mut live = self.lock();
        let number = live.get(cluster).map_or(1, |(number, _)| number + 1);
        if let Some((_, older)) = live.insert(cluster.clone(), (number, replaced.clone())) {
            older.cancel();
        }
        Seat { streams: self.clone(), cluster: cluster.clone(), number, replaced }
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        // Each change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Waits until a newer stream of the same cluster takes over.
    pub async fn replaced(&self) {
        self.replaced.cancelled().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut live = self.streams.lock();
        if live.get(&self.cluster).is_some_and(|(number, _)| *number == self.number) {
            live.remove(&self.cluster);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stream_keeps_the_seat() {
        let streams = AgentStreams::default();
        let cluster = ClusterId::parse("campus", "cluster").expect("a label");
        let first = streams.take(&cluster);
        let second = streams.take(&cluster);
        assert!(first.replaced.is_cancelled() && !second.replaced.is_cancelled());
        drop(first);
        assert_eq!(streams.lock().len(), 1);
        drop(second);
        assert!(streams.lock().is_empty());
    }
}
