//! Brings this side of peerings and leases to the broker's desired state: plans steps, and executes them.

pub mod bound_peering;
pub(crate) mod envelope;
#[cfg(test)]
mod error_page;
pub mod execute;
pub mod fault;
mod lent;
pub mod live;
pub mod parts;
pub mod plan;
pub mod steps;
