//! Commands about leases in force.

pub(crate) mod checkpoint_lease;
pub(crate) mod reclaim_leases;
pub(crate) mod release_lease;
pub(crate) mod renew_lease;
pub(crate) mod report_lease;
