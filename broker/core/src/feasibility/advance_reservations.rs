//! Reservations of policy: GPUs that donors keep for a tenant during weekly windows.
//!
//! A donor keeps an amount of a class, not particular devices. At each moment every tenant counts with the GPUs that it
//! has or, if that is more, with those that are kept for it, and the sum has to fit into what the donor lends of the
//! class, and in all. The sum rises only as windows open, so a lease is checked at its start and at each opening before
//! its end. A preemptible lease counts until it would end if it were reclaimed now: those that stand in the way are
//! reclaimed in time ([`kept`](super::reclaim_checks::kept)).

pub(crate) mod check_kept;
pub(crate) mod donor_windows;
pub(crate) mod kept_at_donor;
pub(crate) mod kept_view;
pub(crate) mod moment;
