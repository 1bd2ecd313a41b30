use comity_types::{EndReason, LeaseState};

use crate::model::lease::Lease;
use crate::state::State;
use crate::state::invariants::Invariant;

pub(crate) const NO_LEASE_STOPS_BEFORE_ITS_GRACE: Invariant = Invariant {
    sentence: "a reclaimed lease runs until its deadline, after the full grace, unless its work is saved",
    check,
};

fn check(state: &State) -> Vec<String> {
    let mut violations = Vec::new();
    for (id, lease) in &state.leases {
        if let Some(violation) = violation_of(lease) {
            violations.push(format!("{id} {violation}"));
        }
    }
    violations
}

fn violation_of(lease: &Lease) -> Option<&'static str> {
    let ended_by_it =
        matches!(lease.end_reason, Some(EndReason::Reclaimed | EndReason::Preempted | EndReason::DonorLost));
    let Some(reclaim) = &lease.reclaim else {
        let needs_one = lease.state == LeaseState::Reclaiming || ended_by_it;
        return needs_one.then_some("is being reclaimed without a reclaim record");
    };
    if reclaim.deadline < reclaim.since.after(reclaim.grace) {
        return Some("has a deadline before its grace");
    }
    if !ended_by_it {
        return None;
    }
    let in_time = lease.ending_at.is_some_and(|at| at >= reclaim.deadline);
    let saved = lease.checkpointed_at.is_some_and(|at| at >= reclaim.since);
    (!in_time && !saved).then_some("stopped before its deadline although its work was not saved")
}
