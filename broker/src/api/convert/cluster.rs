//! Converts member clusters.

use comity_core::State;
use comity_core::cluster::Cluster;
use comity_core::scheduler::limited_need;
use comity_proto::v1;
use comity_types::ClusterId;

/// Converts to the API message, with sums from the ledger.
#[must_use]
pub fn to_proto(state: &State, id: &ClusterId, cluster: &Cluster) -> v1::Cluster {
    v1::Cluster {
        id: id.to_string(),
        institution: cluster.institution.to_string(),
        joined_at_ms: cluster.joined_at.0,
        connected: cluster.connected,
        since_ms: cluster.since.0,
        identity_key: cluster.identity_key.clone(),
        certificate_not_after_ms: cluster.certificate_not_after.0,
        devices: crate::api::convert::count(state.devices_offered(id)),
        lent_milli: state.occupancy().lent_milli(id),
        borrowed_milli: state.borrowed_milli(id),
        offer_generation: cluster.offer.as_ref().map_or(0, |offer| offer.generation),
        revision: cluster.revision,
        reclaim_limited: limited_need(state, id, state.log_time).map(|reached| v1::ReclaimLimited {
            limit: reached.setting,
            until_ms: reached.until.map_or(0, |until| until.0),
        }),
        evicted_at_ms: cluster.evicted.as_ref().map_or(0, |evicted| evicted.since.0),
        suspended_at_ms: state.suspensions.get(&cluster.institution).map_or(0, |suspended| suspended.since.0),
    }
}
