//! Brings this side of peerings and leases to what the broker wants: plan, then carry out, step by step.

#[cfg(test)]
mod error_page;
pub mod execute;
pub mod fault;
pub mod plan;
pub mod steps;
