//! Placements and reclaims that the scheduler proposes.

use comity_types::{LeaseId, RequestId};
use serde::{Deserialize, Serialize};

use crate::model::amounts::Amounts;
use crate::model::placement::Placement;
use crate::model::reclaim::ReclaimReason;

/// One placement of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedPlacement {
    /// The request it serves.
    pub request: RequestId,
    /// The placement, or the first part of a gang.
    pub placement: Placement,
    /// Further parts of a gang, at other donors. Apply creates all parts or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Placement>,
    /// Its kind.
    pub kind: PlacementKind,
    /// Whether the request is overdue and jumped the queue.
    pub overdue: bool,
}

/// Kinds of placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementKind {
    /// Starts a waiting request.
    Serve,
    /// Replaces this lease, which is under reclaim.
    Replace(LeaseId),
    /// Adds members to a running gang.
    Join,
}

impl ProposedPlacement {
    /// Serves a whole request at one donor, in queue order.
    #[must_use]
    pub fn alone(request: RequestId, placement: Placement) -> Self {
        Self { request, placement, more: Vec::new(), kind: PlacementKind::Serve, overdue: false }
    }

    /// All parts of the placement.
    pub fn parts(&self) -> impl Iterator<Item = &Placement> {
        std::iter::once(&self.placement).chain(&self.more)
    }

    /// Total capacity that it takes.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        self.parts().map(Amounts::of).fold(Amounts::default(), Amounts::plus)
    }
}

/// A lease to reclaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedReclaim {
    /// The lease.
    pub lease: LeaseId,
    /// The reason.
    pub reason: ReclaimReason,
}
