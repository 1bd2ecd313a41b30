//! Devices, nodes and donors that fail at random, by the broker's state machine and planner, and what must hold of
//! that.
//!
//! Four donors lend whole GPUs to two clusters. Devices fall ill, by severity, and get well, some of them again and
//! again; nodes stop answering, go and come back; donors fall silent. Agents do at once what they are asked. What is
//! placed, and what is not, is checked by a list of what is ill that the simulation keeps beside the broker.

mod faults;
mod federation;
mod look;
mod report;
mod truth;

use comity_core::{Millis, Refusal};

use self::federation::Federation;
pub use self::report::FailuresReport;
use crate::random::Random;

const MINUTE: u64 = 60_000;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Failures {
    /// Seed of all that is drawn.
    pub seed: u64,
    /// How often something fails or gets well before it ends.
    pub events: u64,
}

impl Failures {
    /// Runs it.
    ///
    /// # Errors
    /// What the core refused that it should not have.
    pub fn run(&self) -> Result<FailuresReport, Refusal> {
        let mut random = Random::new(self.seed);
        let mut federation = Federation::new(self.seed)?;
        while federation.report.events < self.events {
            for _ in 0..random.below(3) {
                federation.submit(&mut random)?;
            }
            federation.settle()?;
            for _ in 0..=random.below(2) {
                federation.fail_or_heal(&mut random)?;
            }
            federation.settle()?;
            federation.pass(Millis(random.bits() % (4 * MINUTE)))?;
        }
        Ok(federation.report)
    }
}
