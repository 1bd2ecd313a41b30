//! The outcome of a scenario.

use crate::actual::Actual;
use crate::difference::Difference;

/// What became of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Path of its file within the directory.
    pub file: String,
    /// Line of its name.
    pub line: u32,
    /// Its name.
    pub name: String,
    /// Whether it holds.
    pub verdict: Verdict,
}

/// Whether a scenario holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// What happens is what it expects.
    Passed,
    /// Something else happens.
    Failed {
        /// What differs; never empty.
        differences: Vec<Difference>,
        /// All that happens.
        actual: Box<Actual>,
    },
    /// What it says is given cannot be: a lease that policy or capacity does not allow, say.
    Impossible {
        /// Why.
        reason: String,
    },
}

impl Outcome {
    /// Whether the scenario holds.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.verdict == Verdict::Passed
    }
}
