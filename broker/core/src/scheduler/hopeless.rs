//! Requests for which a start need not be looked for again.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::cluster::Cluster;
use crate::model::id::{ClusterId, RequestId};
use crate::model::time::{Millis, Timestamp};
use crate::state::State;

/// How long it is remembered that no end of leases makes room for a request: policy has dates.
const HOPELESS_FOR: Millis = Millis::from_mins(1);

/// Requests that nothing that ends makes room for, as long as donors offer the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hopeless {
    since: Timestamp,
    /// By donor: generation of its offer, and whether it is heard.
    donors: BTreeMap<ClusterId, (u64, bool)>,
    policy: String,
    pub(crate) requests: BTreeSet<RequestId>,
}

impl Hopeless {
    /// Forgets all if anything is different that could give hope.
    pub(crate) fn begin(&mut self, state: &State) {
        let of = |(id, cluster): (&ClusterId, &Cluster)| {
            (id.clone(), (cluster.offer.as_ref().map_or(0, |offer| offer.generation), cluster.connected))
        };
        let donors: BTreeMap<_, _> = state.clusters.iter().map(of).collect();
        let policy = state.policy.as_ref().map_or("", |record| record.bundle.hash.as_str());
        let old = state.log_time.since(self.since) >= HOPELESS_FOR;
        if old || self.donors != donors || self.policy != policy {
            *self = Self { since: state.log_time, donors, policy: policy.to_owned(), requests: BTreeSet::new() };
        }
    }
}
