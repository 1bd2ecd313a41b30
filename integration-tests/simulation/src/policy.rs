//! Placement policies: Comity's scheduler and its peers.

mod arbitrary;
mod best_fit;
mod comity;
mod fgd;
mod scan;

use std::fmt;
use std::str::FromStr;

use comity_core::Refusal;
use comity_core::packing::Task;

pub use arbitrary::Arbitrary;
pub use best_fit::BestFit;
pub use comity::Comity;
pub use fgd::Fgd;

use crate::trace::Trace;

/// An online scheduler that keeps its own state of the nodes.
pub trait Policy {
    /// Clears all nodes and may keep what it learned about the work. Random policies use `seed`.
    fn restart(&mut self, seed: u64);

    /// Places `task`; false if it fits nowhere.
    fn place(&mut self, task: &Task) -> bool;

    /// An internal error that invalidates the results.
    fn fault(&self) -> Option<&str> {
        None
    }
}

/// Selects a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// Comity's scheduler and state machine.
    Comity,
    /// Fragmentation gradient descent (Weng et al., USENIX ATC 2023).
    Fgd,
    /// The node with the least free resources.
    BestFit,
    /// Any node that fits.
    Random,
}

/// The name of no policy.
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
    /// Starts the policy on the nodes of `trace`; it learns from `history`.
    ///
    /// # Errors
    /// When Comity's core refuses the nodes.
    pub fn start(self, trace: &Trace, history: &[Task]) -> Result<Box<dyn Policy>, Refusal> {
        Ok(match self {
            Self::Comity => Box::new(Comity::new(trace, history)?),
            Self::Fgd => Box::new(Fgd::new(trace, history)),
            Self::BestFit => Box::new(BestFit::new(trace)),
            Self::Random => Box::new(Arbitrary::new(trace)),
        })
    }
}
