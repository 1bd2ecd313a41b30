//! Brings this side of peerings and leases to what the broker wants: plan, then carry out, step by step.

pub(crate) mod envelope;
#[cfg(test)]
mod error_page;
pub mod execute;
pub mod fault;
pub mod live;
pub mod parts;
pub mod plan;
pub mod steps;
