//! What a planner proposes.

use crate::model::id::RequestId;
use crate::model::proposal::{ProposedPlacement, ProposedReclaim};
use crate::scheduler::reserve::Reserved;

/// What to propose. It was made from one revision; `apply` checks each placement again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Revision it was made from.
    pub based_on: u64,
    /// Placements in the order in which requests were served.
    pub placements: Vec<ProposedPlacement>,
    /// Requests that fit nowhere now; [`explain`](crate::explain::explain) says why.
    pub unplaced: Vec<RequestId>,
    /// The request, if there is one, that others pass only if they do not delay it.
    pub reserved: Option<Reserved>,
    /// Leases to reclaim for requests that may preempt and fit nowhere.
    pub reclaims: Vec<ProposedReclaim>,
}
