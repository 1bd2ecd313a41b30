//! Detects donors that lend more than their terms allow after the terms were lowered.

use std::collections::BTreeSet;

use comity_policy::DenyCode;
use comity_types::{ClusterId, LeaseId, LeaseTreatment};

use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::state::State;

/// The code of reclaims for this reason.
pub(crate) const CODE: &str = DenyCode::DonorExhausted.as_str();

/// The reason to reclaim leases above the limit of a donor; `None` if its terms let them finish.
pub(crate) fn reason(state: &State, donor: &ClusterId) -> Option<ReclaimReason> {
    let treatment = state.policy.as_ref()?.bundle.clusters.get(donor.as_str())?.spec.on_withdrawal;
    let ends = treatment > LeaseTreatment::Finish;
    ends.then(|| ReclaimReason::PolicyChanged { code: CODE.to_owned(), treatment })
}

/// Leases of a donor that have their notice for this reason.
pub(crate) fn noticed<'s>(state: &'s State, donor: &'s ClusterId) -> impl Iterator<Item = (LeaseId, &'s Lease)> {
    let for_limit = |lease: &Lease| {
        let reason = lease.reclaim.as_ref().map(|reclaim| &reclaim.reason);
        matches!(reason, Some(ReclaimReason::PolicyChanged { code, .. }) if code == CODE)
    };
    state.reclaiming().filter(move |(_, lease)| lease.placement.donor == *donor && for_limit(lease))
}

/// Thousandths of GPUs lent above `maxLentGpus` once `gone` are gone.
pub(crate) fn excess_milli(state: &State, donor: &ClusterId, gone: &BTreeSet<LeaseId>) -> u64 {
    let terms = state.policy.as_ref().and_then(|record| record.bundle.clusters.get(donor.as_str()));
    let Some(most) = terms.and_then(|terms| terms.spec.max_lent_gpus_milli) else { return 0 };
    let lent = state
        .leases_of(donor)
        .filter(|(id, lease)| lease.placement.donor == *donor && lease.occupies() && !gone.contains(id));
    let lent: u64 = lent.map(|(_, lease)| lease.placement.milli()).sum();
    lent.saturating_sub(most)
}
