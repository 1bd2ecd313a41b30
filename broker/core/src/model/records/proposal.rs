//! Proposals of the scheduler.

use serde::{Deserialize, Serialize};

use crate::model::amounts::Amounts;
use crate::model::id::{LeaseId, RequestId};
use crate::model::placement::Placement;
use crate::model::reclaim::ReclaimReason;

/// One placement of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedPlacement {
    /// Request it is for.
    pub request: RequestId,
    /// Where.
    pub placement: Placement,
    /// Where else: of a gang that lies on several donors, its parts at the others. All of them are made, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Placement>,
    /// What it is for.
    #[serde(default)]
    pub aim: Aim,
    /// Whether it waited so long that it was served before its turn.
    #[serde(default)]
    pub overdue: bool,
}

/// What a placement is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aim {
    /// A request that waits; or, as before format 5, one whose lease is being reclaimed.
    #[default]
    Serve,
    /// A new place for this lease, which is being reclaimed.
    Replace(LeaseId),
    /// More members for a gang that runs.
    Join,
}

impl ProposedPlacement {
    /// All of a request in one place, in its turn.
    #[must_use]
    pub fn alone(request: RequestId, placement: Placement) -> Self {
        Self { request, placement, more: Vec::new(), aim: Aim::Serve, overdue: false }
    }

    /// All of its parts.
    pub fn parts(&self) -> impl Iterator<Item = &Placement> {
        std::iter::once(&self.placement).chain(&self.more)
    }

    /// What it takes in all.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        self.parts().map(Amounts::of).fold(Amounts::default(), Amounts::plus)
    }
}

/// A lease to reclaim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedReclaim {
    /// Which one.
    pub lease: LeaseId,
    /// Why.
    pub reason: ReclaimReason,
}
