//! The simulations, small.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "simulation/batching.rs"]
mod batching;
#[path = "simulation/campus_week.rs"]
mod campus_week;
#[path = "simulation/failures.rs"]
mod failures;
#[path = "simulation/federation.rs"]
mod federation;
#[path = "simulation/month.rs"]
mod month;
#[path = "simulation/reclaim.rs"]
mod reclaim;
#[path = "simulation/replay.rs"]
mod replay;
