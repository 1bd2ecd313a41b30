//! Resources: the capacity of nodes, the demand of requests, and the resources in placements.

pub mod amounts;
pub mod data;
pub mod demand;
pub mod inventory;
pub mod mig;
pub mod network;
pub mod placement;
pub mod work;
