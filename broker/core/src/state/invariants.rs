//! Invariants that hold after every applied entry, one file each. Debug builds check them after every apply; so do
//! tests and an admin call.

pub(crate) mod a_gang_is_whole_or_absent;
pub(crate) mod a_request_has_one_owner;
pub(crate) mod derived_data_is_current;
pub(crate) mod envelopes_belong_to_their_epoch;
pub(crate) mod gpu_hours_stay_within_quotas;
pub(crate) mod leases_are_delivered_as_asked;
pub(crate) mod no_gpu_is_lent_twice;
pub(crate) mod no_lease_stops_before_its_grace;
pub(crate) mod no_mig_slot_is_lent_twice;
pub(crate) mod no_numa_node_or_link_is_lent_twice;
pub(crate) mod peerings_know_their_leases;
pub(crate) mod replacements_name_their_predecessor;
pub(crate) mod revisions_do_not_run_ahead;
pub(crate) mod the_evicted_take_no_part;
pub(crate) mod unhealthy_devices_get_no_leases;

use crate::state::State;

/// A named invariant and its check.
pub struct Invariant {
    /// The invariant as a sentence.
    pub sentence: &'static str,
    /// Returns one line per violation.
    pub check: fn(&State) -> Vec<String>,
}

/// All invariants.
pub const ALL: &[Invariant] = &[
    no_gpu_is_lent_twice::NO_GPU_IS_LENT_TWICE,
    no_mig_slot_is_lent_twice::NO_MIG_SLOT_IS_LENT_TWICE,
    no_numa_node_or_link_is_lent_twice::NO_NUMA_NODE_OR_LINK_IS_LENT_TWICE,
    unhealthy_devices_get_no_leases::UNHEALTHY_DEVICES_GET_NO_LEASES,
    a_request_has_one_owner::A_REQUEST_HAS_ONE_OWNER,
    a_gang_is_whole_or_absent::A_GANG_IS_WHOLE_OR_ABSENT,
    gpu_hours_stay_within_quotas::GPU_HOURS_STAY_WITHIN_QUOTAS,
    leases_are_delivered_as_asked::LEASES_ARE_DELIVERED_AS_ASKED,
    no_lease_stops_before_its_grace::NO_LEASE_STOPS_BEFORE_ITS_GRACE,
    replacements_name_their_predecessor::REPLACEMENTS_NAME_THEIR_PREDECESSOR,
    peerings_know_their_leases::PEERINGS_KNOW_THEIR_LEASES,
    envelopes_belong_to_their_epoch::ENVELOPES_BELONG_TO_THEIR_EPOCH,
    the_evicted_take_no_part::THE_EVICTED_TAKE_NO_PART,
    revisions_do_not_run_ahead::REVISIONS_DO_NOT_RUN_AHEAD,
    derived_data_is_current::DERIVED_DATA_IS_CURRENT,
];

/// All violations, each as "sentence: detail".
#[must_use]
pub fn violations(state: &State) -> Vec<String> {
    ALL.iter()
        .flat_map(|invariant| {
            (invariant.check)(state).into_iter().map(|detail| format!("{}: {detail}", invariant.sentence))
        })
        .collect()
}

/// Panics if an invariant does not hold.
#[cfg(debug_assertions)]
pub(crate) fn assert_all(state: &State) {
    let violations = violations(state);
    assert!(violations.is_empty(), "invariants violated at revision {}: {violations:#?}", state.revision);
}
