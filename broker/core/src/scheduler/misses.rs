//! Negative caches: what was looked for in vain, and need not be looked for again yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::cluster::Cluster;
use crate::model::id::{ClusterId, RequestId};
use crate::model::time::{Millis, Timestamp};
use crate::state::State;

/// Requests for which one plan looks whose place they could take: each takes a look at what every donor lends.
const MAX_ROOM_SEARCHES: usize = 8;
/// How long it is remembered that nobody can make room for a request.
const ROOM_MISS_KEPT: Millis = Millis::from_secs(10);

/// Requests that nobody could make room for, lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoomMisses {
    pub(crate) since: BTreeMap<RequestId, Timestamp>,
    looked_at: usize,
}

impl RoomMisses {
    /// Begins a plan.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        self.looked_at = 0;
        self.since.retain(|_, since| now.since(*since) < ROOM_MISS_KEPT);
    }

    /// Whether it is worth looking for `id`; where that is all that is asked, its turn need not be waited for.
    pub(crate) fn try_for(&mut self, id: RequestId, is_asked: bool) -> bool {
        if !is_asked && self.looked_at >= MAX_ROOM_SEARCHES || self.since.contains_key(&id) {
            return false;
        }
        self.looked_at += 1;
        true
    }
}

/// How long it is remembered that no end of leases makes room for a request: policy has dates.
const START_MISS_KEPT: Millis = Millis::from_mins(1);

/// Requests that nothing that ends makes room for, as long as donors offer the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartMisses {
    since: Timestamp,
    /// By donor: generation of its offer, and whether it is heard.
    donors: BTreeMap<ClusterId, (u64, bool)>,
    policy: String,
    pub(crate) requests: BTreeSet<RequestId>,
}

impl StartMisses {
    /// Forgets all if anything is different that could give hope.
    pub(crate) fn begin(&mut self, state: &State) {
        let of = |(id, cluster): (&ClusterId, &Cluster)| {
            (id.clone(), (cluster.offer.as_ref().map_or(0, |offer| offer.generation), cluster.connected))
        };
        let donors: BTreeMap<_, _> = state.clusters.iter().map(of).collect();
        let policy = state.policy.as_ref().map_or("", |record| record.bundle.hash.as_str());
        let old = state.log_time.since(self.since) >= START_MISS_KEPT;
        if old || self.donors != donors || self.policy != policy {
            *self = Self { since: state.log_time, donors, policy: policy.to_owned(), requests: BTreeSet::new() };
        }
    }
}
