//! When leases were reclaimed for local need or a preemption: policy may limit how often that happens (`maxReclaims`).

use std::collections::{BTreeMap, VecDeque};

use comity_policy::limits::{MAX_RECLAIM_LIMIT, MAX_RECLAIM_PERIOD_MS};
use comity_policy::{Bundle, ReclaimScope, ReclaimedLease};
use comity_types::{ClassName, ClusterId, TenantId};
use serde::{Deserialize, Serialize};

use crate::model::lease::Lease;
use crate::model::time::{Millis, Timestamp};

/// The last reclaims of each donor and tenant: as many as the largest limit, and no older than the longest period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimHistory {
    /// Times by donor, oldest first.
    donors: BTreeMap<ClusterId, VecDeque<Timestamp>>,
    /// Times and classes by tenant, oldest first.
    tenants: BTreeMap<TenantId, VecDeque<(Timestamp, ClassName)>>,
}

impl ReclaimHistory {
    pub(crate) fn is_empty(&self) -> bool {
        self.donors.is_empty() && self.tenants.is_empty()
    }

    /// Adds the reclaim of a lease, and forgets those that no limit counts any more.
    pub(crate) fn note(&mut self, lease: &Lease, now: Timestamp) {
        let longest = Millis(MAX_RECLAIM_PERIOD_MS);
        for times in self.donors.values_mut() {
            drop_oldest(times, |at| now.since(*at) >= longest);
        }
        for reclaims in self.tenants.values_mut() {
            drop_oldest(reclaims, |(at, _)| now.since(*at) >= longest);
        }
        self.donors.retain(|_, times| !times.is_empty());
        self.tenants.retain(|_, reclaims| !reclaims.is_empty());
        push_bounded(self.donors.entry(lease.placement.donor.clone()).or_default(), now);
        push_bounded(self.tenants.entry(lease.tenant.clone()).or_default(), (now, lease.class.clone()));
    }

    /// Times of the reclaims that a limit counts, oldest first.
    pub(crate) fn times(&self, bundle: &Bundle, scope: ReclaimScope<'_>) -> Vec<Timestamp> {
        if let ReclaimScope::Donor(donor) = scope {
            let times = self.donors.iter().filter(|(id, _)| id.as_str() == donor).flat_map(|(_, times)| times);
            return times.copied().collect();
        }
        let reclaims = self.tenants.iter().flat_map(|(tenant, reclaims)| reclaims.iter().map(move |it| (tenant, it)));
        let counted = reclaims.filter(|(tenant, (_, class))| {
            let lease = ReclaimedLease { donor: "", tenant: tenant.as_str(), class: class.as_str() };
            bundle.counts_reclaim(scope, &lease)
        });
        let mut times: Vec<Timestamp> = counted.map(|(_, (at, _))| *at).collect();
        times.sort();
        times
    }

    /// Shifts all times after a re-base of log time.
    pub(crate) fn shift(&mut self, ms: i64) {
        let Self { donors, tenants } = self;
        let of_tenants = tenants.values_mut().flatten().map(|(at, _)| at);
        for at in donors.values_mut().flatten().chain(of_tenants) {
            *at = at.shifted(ms);
        }
    }
}

fn drop_oldest<T>(times: &mut VecDeque<T>, is_old: impl Fn(&T) -> bool) {
    while times.front().is_some_and(&is_old) {
        times.pop_front();
    }
}

fn push_bounded<T>(times: &mut VecDeque<T>, last: T) {
    times.push_back(last);
    if times.len() > usize::try_from(MAX_RECLAIM_LIMIT).unwrap_or(usize::MAX) {
        times.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_times_are_kept_as_the_largest_limit_counts() {
        let mut times = VecDeque::new();
        (0..u64::from(MAX_RECLAIM_LIMIT) + 5).for_each(|at| push_bounded(&mut times, at));
        assert_eq!((times.len(), times.front()), (1_000, Some(&5)));
        drop_oldest(&mut times, |at| *at < 900);
        assert_eq!(times.front(), Some(&900));
    }

    #[test]
    fn a_rebase_of_log_time_shifts_all_times() {
        let class = ClassName::parse("big", "class").expect("a name");
        let mut history = ReclaimHistory::default();
        history
            .donors
            .entry(ClusterId::parse("south", "cluster").expect("a name"))
            .or_default()
            .push_back(Timestamp(9));
        let tenant = TenantId::parse("team", "tenant").expect("a name");
        history.tenants.entry(tenant).or_default().push_back((Timestamp(9), class));
        history.shift(-4);
        let donors = history.donors.values().flatten().copied();
        let all: Vec<Timestamp> = donors.chain(history.tenants.values().flatten().map(|(at, _)| *at)).collect();
        assert_eq!(all, [Timestamp(5), Timestamp(5)]);
    }
}
