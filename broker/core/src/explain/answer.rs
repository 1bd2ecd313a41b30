//! Answers as people read them.

use crate::feasibility::verdict::DonorVerdict;

/// Why a request is not placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Each donor's answer, by id.
    pub donors: Vec<DonorVerdict>,
    /// One sentence.
    pub summary: String,
}
