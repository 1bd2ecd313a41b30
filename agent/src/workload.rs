//! What workloads of this cluster see of leases: pods that burst, custom resources, and notices of a reclaim.

pub mod burst;
pub mod crd;
pub mod reclaim;
