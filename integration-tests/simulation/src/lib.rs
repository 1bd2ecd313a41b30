//! Replays traces of GPU clusters through Comity's scheduler, and through the schedulers it is measured against.
//!
//! ```text
//! nodes.csv ┐
//!           ├▶ Trace ─▶ arrivals (seed) ─▶ Policy::place for each task ─▶ ReplayResult ─▶ ReplayReport
//! pods.csv  ┘
//! ```
//!
//! Arrivals, marks and averages are those of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): the trace's
//! tasks shuffled, then sampled again until the demand is reached, and placed online in order of arrival; none ends.

pub mod arrivals;
pub mod batching;
pub mod bound;
pub mod broker;
pub mod campus_week;
pub mod failures;
pub mod federation;
pub mod month;
pub mod policy;
pub mod random;
pub mod reclaim;
pub mod replay;
pub mod replay_report;
pub mod resample;
pub mod seeds;
pub mod speed;
mod svg;
mod time;
pub mod trace;
