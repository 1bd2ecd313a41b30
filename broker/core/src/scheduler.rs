//! The scheduler: which donor, which nodes and which devices serve a request.
//!
//! Everything here is pure: it reads a [`State`](crate::State) and returns values. [`plan()`] proposes placements and
//! reclaims. [`check`](fn@crate::feasibility::check) verifies them when `apply` receives them, and
//! [`explain`](crate::explain) answers people.
//!
//! ```text
//! queued requests ─▶ order ─▶ for each donor: filter (request, liveness, policy) ─▶ packing or fit ─▶ score ─▶ best
//!                             long-waiting requests that fit nowhere ─▶ reserve
//!                             preempting requests that fit nowhere ─▶ reclaim
//! offers, policy ─▶ reclaim ─▶ leases to reclaim; reclaimed leases get new places as queued requests do
//! ```
//!
//! The placements and reservations of a plan change free capacity, the placement index and the cache of failed
//! searches.
//! `plan_state` holds all of them, and its steps change all at once.
//!
//! [`packing`] chooses the node within a donor if it can express the demand: whole devices
//! of one node, or part of one device. Other demands (MIG profiles, several shares that may lie on one device, gangs
//! over several nodes, whole nodes, members, NVLink, NUMA, RDMA) are fitted node by node. Where a MIG device may be
//! re-cut on demand, `cutting` chooses the slots and looks ahead at the requests behind.

pub(crate) mod batch;
pub(crate) mod find_migration;
pub(crate) mod grow;
pub(crate) mod head_batch;
pub(crate) mod lookahead;
pub(crate) mod make_room;
pub(crate) mod order;
pub mod packing;
pub(crate) mod placement_index;
pub(crate) mod plan;
pub(crate) mod plan_state;
pub(crate) mod planner;
pub(crate) mod planning;
pub(crate) mod preempt;
pub(crate) mod reclaimer;
pub(crate) mod reservations;
pub(crate) mod reserve;
mod return_quota;
mod stand_back;
pub(crate) mod victims;

pub use plan::Plan;
pub use planner::{OVERDUE_AFTER, Planner, plan};
pub use reclaimer::{Reclaimer, limited_donors, limited_need, reclaims_at};
pub use reserve::Reserved;
