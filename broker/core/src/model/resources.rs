//! Capacity: what nodes have, what requests demand, and what placements take.

pub mod amounts;
pub mod data;
pub mod demand;
pub mod inventory;
pub mod mig;
pub mod network;
pub mod placement;
pub mod work;
