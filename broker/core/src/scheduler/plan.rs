//! The result of planning.

use comity_types::RequestId;

use crate::model::proposal::{ProposedPlacement, ProposedReclaim};
use crate::scheduler::reserve::Reserved;

/// Proposed placements and reclaims. `apply` checks each of them again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Revision of the state that the plan was made from.
    pub based_on: u64,
    /// Placements in the order in which requests were served.
    pub placements: Vec<ProposedPlacement>,
    /// Requests that fit nowhere now; [`explain`](crate::explain::explain) says why.
    pub unplaced: Vec<RequestId>,
    /// The reservation that other requests must not delay.
    pub reserved: Option<Reserved>,
    /// Leases to reclaim for requests that fit nowhere now.
    pub reclaims: Vec<ProposedReclaim>,
}
