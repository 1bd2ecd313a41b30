//! The explanation of a waiting request.

use crate::feasibility::verdict::DonorVerdict;

/// Explains why a request is not placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Each donor's answer, by id.
    pub donors: Vec<DonorVerdict>,
    /// All answers in one sentence.
    pub summary: String,
}
