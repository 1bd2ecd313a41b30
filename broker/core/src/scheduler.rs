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
//! Which node of a donor is a matter of [`packing`](crate::scheduler::packing), as far as it can say what is asked for: whole
//! devices of one node, or part of one. What it cannot say (MIG profiles, several shares that may lie on one device,
//! gangs over several nodes, nodes taken whole, members, NVLink, NUMA, RDMA) is fitted by looking at each node; where a
//! MIG device may be cut as leases need it, `cutting` says at which slots, with the requests that wait behind in snapshot.

pub(crate) mod batch;
pub(crate) mod find_repair;
pub(crate) mod grow;
pub(crate) mod head_batch;
pub(crate) mod lookahead;
pub(crate) mod make_room;
pub(crate) mod misses;
pub(crate) mod order;
pub mod packing;
pub(crate) mod placement_index;
pub(crate) mod plan;
pub(crate) mod planner;
pub(crate) mod planning;
pub(crate) mod preempt;
pub(crate) mod reclaimer;
pub(crate) mod reservations;
pub(crate) mod reserve;
pub(crate) mod reserved_view;
pub(crate) mod victims;

pub use plan::Plan;
pub use planner::{OVERDUE_AFTER, Planner, plan};
pub use reclaimer::{Reclaimer, reclaims_at};
pub use reserve::Reserved;
