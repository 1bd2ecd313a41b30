//! Measures how far a donor is from a request's data.

use comity_types::{ClusterId, DataNeed};

use crate::model::data::{DataSite, LinkEnd, mbits_between, seconds};
use crate::model::demand::RequestSpec;
use crate::state::State;

/// The time until a donor has the request's data, in doublings of minutes: 0 below one minute. Finer differences do not
/// decide, since links are shared and amounts are estimates. Datasets arrive one after another, each over the fastest
/// link from a cluster that holds it, or else from the origin.
pub(crate) fn distance(state: &State, spec: &RequestSpec, donor: &ClusterId) -> u32 {
    doublings(spec.data.iter().fold(0, |all, need| seconds_to(state, spec, donor, need).saturating_add(all)) / 60)
}

/// A round trip in doublings of milliseconds: 0 below one, and 0 while unmeasured, so that it gets measured.
pub(crate) fn round_trip(rtt_us: u64) -> u32 {
    doublings(rtt_us / 1_000)
}

fn doublings(amount: u64) -> u32 {
    u64::BITS - amount.leading_zeros()
}

fn seconds_to(state: &State, spec: &RequestSpec, donor: &ClusterId, need: &DataNeed) -> u64 {
    let site = |id: &ClusterId| -> Option<&DataSite> { Some(&state.clusters.get(id)?.offer.as_ref()?.data) };
    let holds = |data: &DataSite| data.datasets.contains(&need.dataset);
    if site(donor).is_some_and(holds) {
        return 0;
    }
    let end = |cluster| LinkEnd { cluster, site: site(cluster) };
    let holders = state.clusters.keys().map(end).filter(|from| from.site.is_some_and(holds));
    let fastest = holders.map(|from| mbits_between(from, end(donor))).max();
    let mbits = fastest.unwrap_or_else(|| mbits_between(end(&spec.origin), end(donor)));
    seconds(need.mib, mbits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_doublings_tell_donors_apart() {
        assert_eq!([0, 999, 1_000, 1_999, 2_000, 40_000].map(round_trip), [0, 0, 1, 1, 2, 6]);
        assert_eq!(round_trip(u64::MAX), 55);
    }
}
