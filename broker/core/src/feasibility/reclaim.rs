//! Which leases are being reclaimed, and which of them are spared after all.
//!
//! ```text
//! offer, policy ─▶ failed, need, terms ─┐
//!                                       ├─▶ choose ─▶ ReclaimLeases ─▶ check (the same questions, in apply)
//! request that fits nowhere ─▶ room     ─┘
//! ```
//!
//! A donor's need is met by the fewest thousandths of GPUs of the lowest priority that meet it; a request that may
//! preempt gets the room that costs others least. Work that is lost decides between equals.

pub(crate) mod choose;
pub(crate) mod failed;
pub(crate) mod limit;
pub(crate) mod need;
pub(crate) mod pool;
pub(crate) mod repair;
pub(crate) mod room;
pub(crate) mod standing;
pub(crate) mod terms;

pub use standing::{check_reclaims, is_still_needed, spared};

pub(crate) use pool::{check_pools, really_free};
pub(crate) use repair::{Repair, is_right, repair_for};
pub(crate) use room::{Room, fits_when_gone, for_whom, going, preempts, preempts_as, room_for, room_later, yields_to};

/// At most so many leases are looked at one by one in every combination; of more, the best found in order is taken.
const EXACT_MOST: usize = 10;
