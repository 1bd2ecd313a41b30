//! Negative caches: requests whose last search found nothing and need not be repeated yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::cluster::Cluster;
use crate::model::id::{ClusterId, RequestId};
use crate::model::time::{Millis, Timestamp};
use crate::state::State;

/// Room searches per plan: each examines the leases of every donor.
const MAX_ROOM_SEARCHES: usize = 8;
/// Lifetime of a failed room search.
const ROOM_MISS_TTL: Millis = Millis::from_secs(10);

/// Whether a room search counts against the budget of its plan.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SearchBudget {
    /// At most [`MAX_ROOM_SEARCHES`] searches per plan.
    PerPlan,
    /// For a hypothetical request, whose answer somebody waits for.
    Unlimited,
}

/// Requests for which a recent search found no room to reclaim.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoomMisses {
    pub(crate) since: BTreeMap<RequestId, Timestamp>,
    searches: usize,
}

impl RoomMisses {
    /// Begins a plan: drops expired entries and resets the budget.
    pub(crate) fn begin(&mut self, now: Timestamp) {
        self.searches = 0;
        self.since.retain(|_, since| now.since(*since) < ROOM_MISS_TTL);
    }

    /// Whether to search room for `id`; counts the search.
    pub(crate) fn may_search(&mut self, id: RequestId, budget: SearchBudget) -> bool {
        let exhausted = budget == SearchBudget::PerPlan && self.searches >= MAX_ROOM_SEARCHES;
        if exhausted || self.since.contains_key(&id) {
            return false;
        }
        self.searches += 1;
        true
    }
}

/// Lifetime of a failed start search: policy depends on dates.
const START_MISS_TTL: Millis = Millis::from_mins(1);

/// Requests that no lease end makes room for, valid while offers and policy stay the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartMisses {
    since: Timestamp,
    /// By donor: offer generation, and whether the donor is connected.
    donors: BTreeMap<ClusterId, (u64, bool)>,
    policy: String,
    pub(crate) requests: BTreeSet<RequestId>,
}

impl StartMisses {
    /// Forgets all if anything changed that could make room.
    pub(crate) fn begin(&mut self, state: &State) {
        let of = |(id, cluster): (&ClusterId, &Cluster)| {
            (id.clone(), (cluster.offer.as_ref().map_or(0, |offer| offer.generation), cluster.connected))
        };
        let donors: BTreeMap<_, _> = state.clusters.iter().map(of).collect();
        let policy = state.policy.as_ref().map_or("", |record| record.bundle.hash.as_str());
        let old = state.log_time.since(self.since) >= START_MISS_TTL;
        if old || self.donors != donors || self.policy != policy {
            *self = Self { since: state.log_time, donors, policy: policy.to_owned(), requests: BTreeSet::new() };
        }
    }
}
