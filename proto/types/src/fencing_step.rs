//! How far a fencing token may jump.

/// How far a lease's fencing token may lie above the highest one that its donor admitted.
///
/// Tokens of a donor grow by one for each lease, and by 2^20 when a broker group is recovered from a backup. So this
/// is 64 recoveries, or 67 million leases that the donor never saw. Without a bound, one lease with the largest token
/// would make every later lease look outdated.
pub const MAX_FENCING_TOKEN_STEP: u64 = 1 << 26;
