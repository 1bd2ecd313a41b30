//! Matching: which donor, which nodes, which devices, and why not.
//!
//! Everything here is pure: it reads a [`State`](crate::State) and returns values. [`plan`] proposes, [`check`] is what
//! `apply` asks before it believes a proposal, [`explain`] and [`quote`] answer people.
//!
//! ```text
//! queued requests ─▶ order ─▶ for each donor: filter (request, liveness, policy) ─▶ fit on nodes ─▶ score ─▶ best
//! ```

mod check;
mod device;
mod explain;
mod fit;
mod order;
mod plan;
mod score;
mod verdict;
mod view;

pub use check::{Grant, check, check_renewal, check_request};
pub use explain::{Explanation, Quote, explain, quote};
pub use plan::{Plan, plan};
pub use verdict::{DonorVerdict, Obstacle};
