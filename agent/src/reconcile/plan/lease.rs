//! What both sides plan alike for a lease: its end, and a refusal.

use comity_proto::v1;

use super::{Step, View, is_past_grace, is_wanted};
use crate::model::side::Side;
use crate::state::record::ReportKey;

/// What a side's records hold of a lease.
#[derive(Clone, Copy)]
pub(super) struct Held {
    /// It was taken down.
    pub(super) removed: bool,
    /// The broker knows that.
    pub(super) clean_acked: bool,
}

/// Plans the end of a lease that ends, that nobody wants or that is past its grace. True where it is one of those: then
/// nothing else is to be done for it.
pub(super) fn ends(view: &View<'_>, lease: &v1::Lease, side: Side, held: Option<Held>, steps: &mut Vec<Step>) -> bool {
    let remove = |report| Step::RemoveLease { lease: lease.id.clone(), side: Some(side), report };
    if lease.state() == v1::LeaseState::Ending {
        let known = held.is_some_and(|held| held.clean_acked);
        if !known && !view.is_reported(&ReportKey::Clean(lease.id.clone())) {
            steps.push(remove(Some(lease.fencing_token)));
        }
        return true;
    }
    if !is_wanted(lease) || view.is_reported(&ReportKey::LeaseFailed(lease.id.clone())) {
        return true;
    }
    if !is_past_grace(view, lease) {
        return false;
    }
    if held.is_some_and(|held| !held.removed) {
        steps.push(remove(None));
    }
    true
}

/// Tells the broker that this side cannot go on with the lease.
pub(super) fn refuse(lease: &v1::Lease, code: &'static str, message: String) -> Step {
    Step::RefuseLease { lease: lease.id.clone(), fencing_token: lease.fencing_token, code, message }
}
