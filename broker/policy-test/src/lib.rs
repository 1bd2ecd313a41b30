//! Runs the scenarios beside a policy.
//!
//! Each scenario gets a [`State`](comity_core::State) of its own. It changes only by log entries, as a broker's does,
//! and the broker's scheduler plans for it. This crate decides nothing itself.
//!
//! ```text
//! Bundle ──▶ ScenarioRunner (policy in force) ──▶ per scenario: clusters join and offer, leases begin,
//!                  the request is submitted, planned and placed ──▶ Actual ──▶ compared with Expected ──▶ Outcome
//! ```
//!
//! Like the core, it reads no clock and draws no random numbers.

mod actual;
mod devices;
mod difference;
mod federation;
mod outcome;
mod requests;
mod runner;

pub use actual::{Actual, Reason, Reclaimed};
pub use difference::Difference;
pub use outcome::{Outcome, Verdict};
pub use runner::ScenarioRunner;
