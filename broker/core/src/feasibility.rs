//! Decides whether a demand fits, and whether a proposal still holds.

pub(crate) mod advance_reservations;
pub(crate) mod check;
pub(crate) mod check_renewal;
pub(crate) mod check_wiring;
pub(crate) mod classes;
pub(crate) mod demand_key;
pub(crate) mod donors;
pub(crate) mod fit;
pub(crate) mod gpu_types;
pub(crate) mod held_capacity;
pub(crate) mod idle;
pub(crate) mod obstacle;
pub(crate) mod obstacles;
pub(crate) mod reclaim_checks;
pub(crate) mod release;
pub(crate) mod snapshot;
pub(crate) mod verdict;

pub use check::{Grant, check, check_request};
pub use check_renewal::check_renewal;
pub use obstacle::{Cure, Obstacle};
pub use reclaim_checks::reclaim_budget::ReachedLimit;
pub use reclaim_checks::{check_reclaims, is_still_needed, spared};
pub use verdict::DonorVerdict;
