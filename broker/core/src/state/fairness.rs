//! Fair sharing: present and past use of tenants and institutions, what they lend, and the resulting shares.
//!
//! Dominant resource fairness (Ghodsi et al., NSDI 2011) over three resources: thousandths of GPUs, thousandths of
//! cores, MiB of memory. A dominant share is the largest fraction of any resource's total capacity that a user takes.
//! The scheduler compares shares in two steps: first between institutions, then between the tenants of one institution.
//!
//! ```text
//! use            = present use + mean of past use, decayed with half-life `usageHalfLife`
//! share          = max over resources of use / total capacity of all offers
//! tenant         : share × 100 / weight
//! institution    : share × 100 / (weight × reciprocity)
//! reciprocity    = 1 + min(3, lent / mean lent of all institutions)      lent: GPUs lent to others, now and past
//! ```
//!
//! All arithmetic uses integers. The state stores past use and advances it by log time only when holdings change.

pub(crate) mod decay;
pub(crate) mod holdings;
pub(crate) mod ledger;
pub(crate) mod past;
pub(crate) mod shares;

pub use crate::model::amounts::Amounts;
pub(crate) use holdings::Holdings;
pub use ledger::Ledger;
pub use past::Past;
pub use shares::Shares;
