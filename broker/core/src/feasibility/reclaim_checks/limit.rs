//! Detects donors that lend more than their terms allow after the terms were lowered.

use std::collections::BTreeSet;

use comity_policy::DenyCode;
use comity_types::{ClusterId, LeaseId};

use crate::state::State;

/// The code of reclaims for this reason.
pub(crate) const CODE: &str = DenyCode::DonorExhausted.as_str();

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
