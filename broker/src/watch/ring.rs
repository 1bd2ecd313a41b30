//! Ring buffer of recent changes.

use std::collections::VecDeque;
use std::sync::Arc;

use comity_policy::Bundle;

use crate::api::rpc_error::RpcError;
use crate::watch::event::Event;

/// Everything that one revision changed.
#[derive(Debug)]
pub struct Batch {
    /// The revision.
    pub revision: u64,
    /// Objects as they are at this revision.
    pub events: Vec<Event>,
    /// The bundle in force at this revision: it decides what a watcher may see.
    pub policy: Option<Arc<Bundle>>,
}

/// Batches in order, without gaps.
#[derive(Debug)]
pub(super) struct Ring {
    batches: VecDeque<Arc<Batch>>,
    /// Events in all batches.
    events: usize,
    max_events: usize,
    /// Revision before the first batch.
    before: u64,
    policy: Option<Arc<Bundle>>,
}

impl Ring {
    pub(super) fn new(max_events: usize) -> Self {
        Self { batches: VecDeque::new(), events: 0, max_events, before: 0, policy: None }
    }

    pub(super) fn policy(&self) -> Option<Arc<Bundle>> {
        self.policy.clone()
    }

    pub(super) fn push(&mut self, batch: Batch) {
        // A change without events, such as a bundle, still counts.
        self.events += batch.events.len().max(1);
        self.policy.clone_from(&batch.policy);
        self.batches.push_back(Arc::new(batch));
        while self.events > self.max_events
            && self.batches.len() > 1
            && let Some(oldest) = self.batches.pop_front()
        {
            self.events -= oldest.events.len().max(1);
            self.before = oldest.revision;
        }
    }

    pub(super) fn restart(&mut self, revision: u64, policy: Option<Arc<Bundle>>) {
        self.batches.clear();
        self.events = 0;
        self.before = revision;
        self.policy = policy;
    }

    pub(super) fn after(&self, revision: u64, limit: usize) -> Result<Vec<Arc<Batch>>, RpcError> {
        let newest = self.batches.back().map_or(self.before, |batch| batch.revision);
        if revision < self.before || revision > newest {
            return Err(RpcError::ResyncRequired { from: revision, oldest: self.before, newest });
        }
        let first = self.batches.partition_point(|batch| batch.revision <= revision);
        Ok(self.batches.range(first..).take(limit).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use comity_proto::v1;
    use comity_types::ClusterId;

    use super::*;
    use crate::watch::event::Event;

    fn batch(revision: u64, events: usize) -> Batch {
        let cluster = ClusterId::parse("campus", "cluster").expect("a label");
        let event = || Event::of_cluster(cluster.clone(), v1::Cluster::default(), revision);
        Batch { revision, events: (0..events).map(|_| event()).collect(), policy: None }
    }

    #[test]
    fn resumes_within_the_ring_and_asks_for_a_resync_beyond_it() {
        let mut ring = Ring::new(4);
        for revision in 1..=6 {
            ring.push(batch(revision, 1));
        }
        let revisions = |from| ring.after(from, 10).map(|found| found.iter().map(|b| b.revision).collect::<Vec<_>>());
        assert_eq!(revisions(2).expect("kept"), [3, 4, 5, 6]);
        assert_eq!(revisions(6).expect("newest"), Vec::<u64>::new());
        assert!(matches!(revisions(1), Err(RpcError::ResyncRequired { from: 1, oldest: 2, newest: 6 })));
        assert!(matches!(revisions(7), Err(RpcError::ResyncRequired { .. })));
        assert_eq!(ring.after(2, 2).expect("kept").len(), 2);
    }

    #[test]
    fn one_large_batch_stays_whole_and_a_restart_forgets() {
        let mut ring = Ring::new(4);
        ring.push(batch(1, 1));
        ring.push(batch(2, 9));
        assert_eq!(ring.after(1, 10).expect("kept").len(), 1);
        ring.restart(40, None);
        assert!(ring.after(2, 10).is_err());
        assert!(ring.after(40, 10).expect("now").is_empty());
    }
}
