//! Who decides: Comity's scheduler, and what it is measured against.

mod best_fit;
mod comity;
mod fgd;
mod random;
mod scan;

use std::fmt;
use std::str::FromStr;

use comity_core::Refusal;
use comity_core::packing::Task;

pub use best_fit::BestFit;
pub use comity::Comity;
pub use fgd::Fgd;
pub use random::Arbitrary;

use crate::trace::Trace;

/// A scheduler that serves tasks as they come and keeps its own books.
pub trait Policy {
    /// Clears all nodes; `seed` is for a policy that draws lots. What it learned of the work may stay.
    fn restart(&mut self, seed: u64);

    /// Places `task`; false if it fits nowhere.
    fn place(&mut self, task: &Task) -> bool;

    /// What went wrong, so that figures mean nothing.
    fn fault(&self) -> Option<&str> {
        None
    }
}

/// Which policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// Comity's scheduler and state machine.
    Comity,
    /// Fragmentation gradient descent (Weng et al., USENIX ATC 2023).
    Fgd,
    /// The node with least left.
    BestFit,
    /// Any node that fits.
    Random,
}

/// A policy that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("policy {0:?} does not exist; use comity, fgd, best-fit or random")]
pub struct UnknownPolicy(String);

impl FromStr for PolicyName {
    type Err = UnknownPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        match text {
            "comity" => Ok(Self::Comity),
            "fgd" => Ok(Self::Fgd),
            "best-fit" => Ok(Self::BestFit),
            "random" => Ok(Self::Random),
            other => Err(UnknownPolicy(other.to_owned())),
        }
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Comity => "comity",
            Self::Fgd => "fgd",
            Self::BestFit => "best-fit",
            Self::Random => "random",
        })
    }
}

impl PolicyName {
    /// The policy over the nodes of `trace`, knowing `history`.
    ///
    /// # Errors
    /// What Comity's core says to nodes that no cluster may offer.
    pub fn start(self, trace: &Trace, history: &[Task]) -> Result<Box<dyn Policy>, Refusal> {
        Ok(match self {
            Self::Comity => Box::new(Comity::new(trace, history)?),
            Self::Fgd => Box::new(Fgd::new(trace, history)),
            Self::BestFit => Box::new(BestFit::new(trace)),
            Self::Random => Box::new(Arbitrary::new(trace)),
        })
    }
}
