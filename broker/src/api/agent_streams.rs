//! Allows one stream per cluster on this broker. A newer stream replaces the older one, which may be a dead connection.
//! Streams before their hello and replaced ones are bounded too, because each may hold a large message.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use comity_runtime::tls::{HeldSlots, KeyedSlots, SlotLimit};
use comity_types::ClusterId;
use tokio::sync::watch;

use crate::api::rpc_error::RpcError;

/// Open streams of one cluster: the newest, and replaced ones that have yet to close.
pub const MAX_STREAMS_PER_CLUSTER: usize = 4;

type Live = BTreeMap<ClusterId, Holder>;

/// The process that sent a newer stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// The same agent: it opens a new stream before it closes the old one.
    SameProcess,
    /// Another agent with the cluster's certificate, or the same one after a restart.
    OtherProcess,
}

/// The newest stream of a cluster.
#[derive(Debug)]
struct Holder {
    number: u64,
    /// The agent's process, as its hello names it; empty if it names none.
    instance: String,
    replaced: watch::Sender<Option<Takeover>>,
}

/// The streams of this broker. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct AgentStreams {
    live: Arc<Mutex<Live>>,
    open: KeyedSlots<ClusterId>,
}

/// A cluster's slot for its stream; released on drop.
#[derive(Debug)]
pub struct Seat {
    streams: AgentStreams,
    cluster: ClusterId,
    number: u64,
    replaced: watch::Receiver<Option<Takeover>>,
}

impl AgentStreams {
    /// Counts a stream until the result is dropped.
    ///
    /// # Errors
    /// [`RpcError::LimitReached`].
    pub fn open(&self, cluster: &ClusterId) -> Result<HeldSlots<ClusterId>, RpcError> {
        let limit = SlotLimit { key: cluster.clone(), most: MAX_STREAMS_PER_CLUSTER };
        self.open.take([limit]).map_err(|SlotLimit { key, most }| RpcError::LimitReached {
            reason: format!("cluster {key} has {most} open streams, which is the limit of one cluster"),
            remedy: "run one agent per cluster, and connect again once an older stream has closed",
        })
    }

    /// Takes the cluster's slot for a process of its agent; the previous stream is told to end.
    #[must_use]
    pub fn take(&self, cluster: &ClusterId, instance: &str) -> Seat {
        let (sender, replaced) = watch::channel(None);
        let mut live = self.lock();
        let number = live.get(cluster).map_or(1, |older| older.number + 1);
        let holder = Holder { number, instance: instance.to_owned(), replaced: sender };
        if let Some(older) = live.insert(cluster.clone(), holder) {
            let is_same = !instance.is_empty() && older.instance == instance;
            older.replaced.send_replace(Some(if is_same { Takeover::SameProcess } else { Takeover::OtherProcess }));
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
    pub async fn replaced(&self) -> Takeover {
        let mut replaced = self.replaced.clone();
        let takeover = replaced.wait_for(Option::is_some).await.ok().and_then(|takeover| *takeover);
        match takeover {
            Some(takeover) => takeover,
            // The sender is dropped only after it has sent.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut live = self.streams.lock();
        if live.get(&self.cluster).is_some_and(|holder| holder.number == self.number) {
            live.remove(&self.cluster);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn the_newest_stream_keeps_the_seat() {
        let streams = AgentStreams::default();
        let cluster = ClusterId::parse("campus", "cluster").expect("a label");
        let first = streams.take(&cluster, "a");
        let second = streams.take(&cluster, "b");
        assert!(first.replaced().now_or_never().is_some() && second.replaced().now_or_never().is_none());
        drop(first);
        assert_eq!(streams.lock().len(), 1);
        drop(second);
        assert!(streams.lock().is_empty());
    }

    #[test]
    fn one_cluster_has_a_bounded_number_of_open_streams() {
        let streams = AgentStreams::default();
        let cluster = |name: &str| ClusterId::parse(name, "cluster").expect("a label");
        let mut open: Vec<_> =
            (0..MAX_STREAMS_PER_CLUSTER).map(|_| streams.open(&cluster("campus")).expect("room")).collect();
        let refusal = streams.open(&cluster("campus")).expect_err("no room").to_string();
        assert_eq!(refusal, "cluster campus has 4 open streams, which is the limit of one cluster");
        streams.open(&cluster("other")).expect("room of its own");
        open.pop();
        streams.open(&cluster("campus")).expect("room again");
    }

    #[test]
    fn a_stream_of_the_same_process_is_told_apart() {
        let cluster = ClusterId::parse("campus", "cluster").expect("a label");
        let takeover = |older: &str, newer: &str| {
            let streams = AgentStreams::default();
            let first = streams.take(&cluster, older);
            let _second = streams.take(&cluster, newer);
            first.replaced().now_or_never()
        };
        assert_eq!(takeover("a", "a"), Some(Takeover::SameProcess));
        assert_eq!(takeover("a", "b"), Some(Takeover::OtherProcess));
        assert_eq!(takeover("", ""), Some(Takeover::OtherProcess));
    }
}
