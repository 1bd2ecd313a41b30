//! Codes of agents' failures that the broker acts on. All others it only shows.

/// The origin's own policy does not accept this donor, and may accept others.
pub const DONOR_REFUSED: &str = "donor-refused";
/// The cluster's own policy does not allow the loan.
pub const LOCAL_POLICY: &str = "local-policy";
