//! All that the plan looks at.

use std::collections::BTreeMap;

use comity_proto::v1;

use super::pod::PodFacts;
use super::{reason_word, reclaim_of};

/// Why a lease is being reclaimed, and until when it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimNotice {
    /// When it ends, RFC 3339.
    pub at: String,
    /// The word for why, as in "local-need".
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// Where its request goes on; empty while no place is known.
    pub moved_to: String,
    /// When notice was given, in milliseconds since 1970.
    pub since_ms: u64,
}

impl ReclaimNotice {
    /// The reclaim of a lease; `None` for one that is not reclaimed.
    #[must_use]
    pub fn of(lease: &v1::Lease) -> Option<Self> {
        let reclaim = reclaim_of(lease)?;
        Some(Self {
            at: crate::workload::crd::time(reclaim.deadline_ms)?,
            reason: reason_word(reclaim),
            message: lease.message.clone(),
            moved_to: lease.moved_to.clone(),
            since_ms: reclaim.since_ms,
        })
    }
}

/// An own lease by virtual node that is in force, and whose pods have been seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The virtual node that stands for it.
    pub node: String,
    /// Its reclaim.
    pub reclaim: Option<ReclaimNotice>,
    /// When this process first knew of the reclaim, in milliseconds since 1970; 0 where there is none.
    pub noticed_ms: u64,
}

/// A look at the cluster and at what the broker wants.
#[derive(Clone, Debug, Default)]
pub struct ReclaimView {
    /// Now, in milliseconds since 1970.
    pub now_ms: u64,
    /// By lease.
    pub leases: BTreeMap<String, LeaseView>,
    /// Pods on their nodes.
    pub pods: Vec<PodFacts>,
}
