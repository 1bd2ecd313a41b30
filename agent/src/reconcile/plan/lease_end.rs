//! Planning that both sides of a lease share: its end, and refusals.

use comity_agent_model::lease::Lease;
use comity_agent_state::record::ReportKey;
use comity_types::{LeaseState, Side};

use super::{Snapshot, Step};
use crate::reconcile::bound_peering::Unbound;
use crate::reconcile::steps::lease::{RefuseLease, RemoveLease};

/// How far a side has taken a lease down, by its records.
#[derive(Clone, Copy)]
pub(super) struct TakeDown {
    /// The side is taken down.
    pub(super) removed: bool,
    /// A broker acknowledged that.
    pub(super) clean_acked: bool,
    /// When the lease ends by this cluster's own limit, in milliseconds since 1970.
    pub(super) own_end_ms: Option<u64>,
}

/// Whether a lease is past its end and the outage grace while no broker can be reached. The broker says when it ends,
/// but not later than this cluster's own limit does.
fn is_past_grace(snapshot: &Snapshot<'_>, lease: &Lease, own_end_ms: Option<u64>) -> bool {
    let term_end_ms = Some(lease.expires_at_ms).filter(|end| *end > 0);
    let end_ms = term_end_ms.into_iter().chain(own_end_ms).min();
    let past = |end: u64| snapshot.now_ms > end.saturating_add(snapshot.outage_grace_ms);
    !snapshot.is_live && end_ms.is_some_and(past)
}

/// Plans the end of a lease that is ending, unwanted or past its grace. Returns true in these cases: the caller plans
/// nothing else for the lease.
pub(super) fn ends(
    snapshot: &Snapshot<'_>,
    lease: &Lease,
    side: Side,
    held: Option<TakeDown>,
    steps: &mut Vec<Step>,
) -> bool {
    let remove = |report| -> Step { RemoveLease { lease: lease.id, side: Some(side), report }.into() };
    if lease.state == Some(LeaseState::Ending) {
        // A broker that is connected and says so has not taken note of an earlier report.
        let is_due = snapshot.is_live || held.is_none_or(|held| !held.clean_acked);
        if is_due && !snapshot.is_reported(&ReportKey::Clean(lease.id)) {
            steps.push(remove(Some(lease.fencing_token)));
        }
        return true;
    }
    if !lease.is_wanted() || snapshot.is_reported(&ReportKey::LeaseFailed(lease.id)) {
        return true;
    }
    let held_end = held.and_then(|held| held.own_end_ms);
    if !is_past_grace(snapshot, lease, held_end) {
        return false;
    }
    if held.is_some_and(|held| !held.removed) {
        steps.push(remove(None));
    }
    true
}

/// The step that reports to the broker that this side cannot serve the lease.
pub(super) fn refuse(lease: &Lease, code: &'static str, message: String) -> Step {
    RefuseLease { lease: lease.id, fencing_token: lease.fencing_token, code, message }.into()
}

/// The refusal of a lease that has no peering which it may use; none while that peering is not ready.
pub(super) fn refusal(lease: &Lease, unbound: Unbound) -> Option<Step> {
    match unbound {
        Unbound::Pending => None,
        Unbound::Mismatch(reason) => Some(refuse(lease, "peering-mismatch", reason)),
        Unbound::Rebound(reason) => Some(refuse(lease, "lease-rebound", reason)),
        Unbound::IdentityChanged(reason) => Some(refuse(lease, "identity-changed", reason)),
        Unbound::NotVouched(reason) => Some(refuse(lease, "not-vouched", reason)),
    }
}
