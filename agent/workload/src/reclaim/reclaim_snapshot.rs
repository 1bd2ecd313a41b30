//! Input of the reclaim plan.

use std::collections::BTreeMap;

use comity_agent_model::lease::Lease;
use comity_types::LeaseId;

use super::bound_pod::BoundPod;
use super::{reason_word, reclaim_of};

/// The reclaim of a lease: reason and deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimNotice {
    /// Deadline, RFC 3339.
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
            at: crate::crd::time(reclaim.deadline_ms)?,
            reason: reason_word(reclaim).to_owned(),
            message: lease.message.clone(),
            moved_to: lease.moved_to,
            since_ms: reclaim.since_ms,
        })
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
