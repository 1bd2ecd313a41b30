//! Who is next by fairness: what tenants and institutions hold, what they held, what they lend, and the shares that
//! follow.
//!
//! Dominant resource fairness (Ghodsi et al., NSDI 2011) over three resources: thousandths of GPUs, thousandths of
//! cores, MiB of memory. The dominant share of somebody is the largest of the three parts that their use is of what the
//! federation has to lend. It is taken in two steps, first between institutions, then between the tenants of one.
//!
//! ```text
//! use            = held now + mean of what was held, weighted by age with a half-life (`usageHalfLife`)
//! share          = max over resources of use / what all offers hold
//! tenant         : share × 100 / weight
//! institution    : share × 100 / (weight × reciprocity)
//! reciprocity    = 1 + min(3, lent / mean lent of all institutions)      lent: GPUs held by others, now and before
//! ```
//!
//! Everything is an integer; past use is kept in the state and advanced by log time only when what is held changes.

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
