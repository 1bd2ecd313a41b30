//! Matching: which donor, which nodes, which devices, and why not.
//!
//! Everything here is pure: it reads a [`State`](crate::State) and returns values. [`plan`] proposes, [`check`] is what
//! `apply` asks before it believes a proposal, [`explain`] and [`quote`] answer people.
//!
//! ```text
//! queued requests ─▶ order ─▶ for each donor: filter (request, liveness, policy) ─▶ packing, or fit ─▶ score ─▶ best
//! ```
//!
//! Which node of a donor is a matter of [`packing`](crate::packing), as far as it can say what is asked for: whole devices
//! of one node, or part of one. What it cannot say (MIG profiles, several shares that may lie on one device, gangs over
//! several nodes, nodes taken whole) is fitted by looking at each node.

mod check;
mod device;
mod explain;
mod fit;
mod order;
mod packs;
mod plan;
mod score;
mod verdict;
mod view;

pub use check::{Grant, check, check_renewal, check_request};
pub use explain::{Explanation, Quote, explain, quote};
pub use plan::{Plan, Planner, plan};
pub use verdict::{DonorVerdict, Obstacle};
