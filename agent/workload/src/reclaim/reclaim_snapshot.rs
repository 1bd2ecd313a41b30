//! Input of the reclaim plan.

use std::collections::BTreeMap;

use comity_agent_model::lease::Lease;
use comity_types::LeaseId;

use super::bound_pod::BoundPod;
use super::{reason_word, reclaim_of};

/// The reclaim of a lease: reason and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimNotice {
    /// When the lease ends, RFC 3339.
    pub at: String,
    /// Reason, as in "local-need".
    pub reason: String,
    /// Reason, for people.
    pub message: String,
    /// The request's next lease, once it has one.
    pub moved_to: Option<LeaseId>,
    /// When notice was given, in milliseconds since 1970.
    pub since_ms: u64,
}

impl ReclaimNotice {
    /// The reclaim of a lease; `None` for one that is not reclaimed.
    #[must_use]
    pub fn of(lease: &Lease) -> Option<Self> {
        let reclaim = reclaim_of(lease)?;
        Some(Self {
            at: crate::crd::time(end_ms(lease.expires_at_ms, reclaim.deadline_ms))?,
            reason: reason_word(reclaim).to_owned(),
            message: lease.message.clone(),
            moved_to: lease.moved_to,
            since_ms: reclaim.since_ms,
        })
    }
}

/// When a reclaimed lease ends: with its term, if that is before the deadline of the reclaim.
fn end_ms(expires_at_ms: u64, deadline_ms: u64) -> u64 {
    match expires_at_ms {
        // It has no term yet.
        0 => deadline_ms,
        term_end => term_end.min(deadline_ms),
    }
}

/// An own lease by virtual node that is in force and whose pods were listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Its virtual node.
    pub node: String,
    /// Its reclaim.
    pub reclaim: Option<ReclaimNotice>,
    /// When this process first knew of the reclaim, in milliseconds since 1970; 0 where there is none.
    pub noticed_ms: u64,
}

/// Cluster and desired state at one time.
#[derive(Clone, Debug, Default)]
pub struct ReclaimSnapshot {
    /// Now, in milliseconds since 1970.
    pub now_ms: u64,
    /// Leases by id.
    pub leases: BTreeMap<LeaseId, LeaseView>,
    /// Pods on the leases' nodes.
    pub pods: Vec<BoundPod>,
}

#[cfg(test)]
mod tests {
    use comity_agent_model::lease::reclaim::{Reclaim, ReclaimReason};
    use comity_types::{LeaseState, PeeringId, RequestId};

    use super::*;

    #[test]
    fn a_notice_names_the_earlier_of_deadline_and_end_of_the_term() {
        let origin = "here".parse().expect("a cluster");
        let reclaim = Reclaim { reason: Some(ReclaimReason::LocalNeed), since_ms: 0, deadline_ms: 300_000 };
        let mut lease = Lease {
            state: Some(LeaseState::Reclaiming),
            reclaim: Some(reclaim),
            ..Lease::new(LeaseId(1), RequestId(1), origin, PeeringId(1))
        };
        for (expires_at_ms, at) in [
            (0, "1970-01-01T00:05:00Z"),
            (270_000, "1970-01-01T00:04:30Z"),
            (300_000, "1970-01-01T00:05:00Z"),
            (900_000, "1970-01-01T00:05:00Z"),
        ] {
            lease.expires_at_ms = expires_at_ms;
            assert_eq!(ReclaimNotice::of(&lease).map(|notice| notice.at).as_deref(), Some(at), "{expires_at_ms}");
        }
    }
}
