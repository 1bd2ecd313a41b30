//! Matching: which donor, which nodes, which devices, and why not.
//!
//! Everything here is pure: it reads a [`State`](crate::State) and returns values. [`plan`] proposes, [`check`] is what
//! `apply` asks before it believes a proposal, [`explain`] and [`quote`] answer people.
//!
//! ```text
//! queued requests ─▶ order ─▶ for each donor: filter (request, liveness, policy) ─▶ packing, or fit ─▶ score ─▶ best
//!                                                    what has waited long and fits nowhere ─▶ reserve
//!                                                    what may preempt and fits nowhere ─▶ reclaim
//! offers, policy ─▶ reclaim ─▶ leases to reclaim; a new place for what is being reclaimed is found as for what waits
//! ```
//!
//! Which node of a donor is a matter of [`packing`](crate::packing), as far as it can say what is asked for: whole
//! devices of one node, or part of one. What it cannot say (MIG profiles, several shares that may lie on one device,
//! gangs over several nodes, nodes taken whole, members, NVLink, NUMA, RDMA) is fitted by looking at each node; where a
//! MIG device may be cut as leases need it, `cutting` says at which slots, with the requests that wait behind in view.

mod ahead;
mod asked;
mod bandwidth;
mod batch;
mod check;
mod check_wiring;
mod cut;
mod cutting;
mod device;
mod explain;
mod fit;
mod gravity;
mod grow;
mod hopeless;
mod kept;
mod make_room;
mod never;
mod no_start;
mod nodes;
mod order;
mod outlook;
mod packs;
mod plan;
mod quote;
mod reclaim;
mod reclaims;
mod reserve;
mod score;
mod sought;
mod spread;
mod standing;
mod together;
mod unwell;
mod verdict;
mod view;
mod ways;
mod wired;
mod wishes;

pub(crate) use check::check_proposed;
pub use check::{Grant, check, check_renewal, check_request};
pub use explain::{Explanation, Waiting, explain, explain_waiting};
pub use plan::{OVERDUE_AFTER, Plan, Planner, plan};
pub use quote::{Quote, quote};
pub use reclaim::{Reclaimer, check_reclaims, is_still_needed, reclaims_at, spared};
pub use reclaims::{ReclaimedLease, Reclaims};
pub use reserve::Reserved;
pub use sought::explain_sought;
pub use standing::Standing;
pub use verdict::{DonorVerdict, Obstacle};
