//! Checks whether reclaims are justified: when they are proposed, and again while they run.

pub(crate) mod borrowed_quota;
pub(crate) mod check_reclaims;
pub(crate) mod failed;
pub(crate) mod kept;
pub(crate) mod limit;
pub(crate) mod migration;
pub(crate) mod need;
pub(crate) mod pool;
pub(crate) mod preemption;
pub(crate) mod reclaim_budget;
pub(crate) mod terms;

pub use check_reclaims::{check_reclaims, is_still_needed, spared};
