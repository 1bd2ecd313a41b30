//! Answers for people: why a request waits, when it could start, and what a new one would get.

pub(crate) mod answer;
pub(crate) mod explanation;
pub(crate) mod outlook;
pub(crate) mod queue_position;
pub(crate) mod quote;
pub(crate) mod reclaims;
pub(crate) mod sought;

pub use answer::Explanation;
pub use explanation::{Waiting, explain, explain_waiting};
pub use queue_position::Standing;
pub use quote::{Quote, quote};
pub use reclaims::{ReclaimedLease, Reclaims};
pub use sought::explain_sought;
