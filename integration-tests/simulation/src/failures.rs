//! Fails devices, nodes and donors at random, and checks the reactions of the broker's state machine and planner.
//!
//! Four donors lend whole GPUs to two clusters. Devices fail with different severities and recover, some repeatedly;
//! nodes stop answering, leave and return; donors fall silent. Agents carry out orders at once. The simulation checks
//! every placement against its own list of failures.

mod failing_federation;
mod failures_report;
mod faults;
mod ground_truth;
mod invariants;

use comity_core::{Millis, Refusal};

use self::failing_federation::FailingFederation;
pub use self::failures_report::FailuresReport;
use crate::random::Random;
use crate::time::MINUTE;

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Failures {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Failures and recoveries to simulate.
    pub events: u64,
}

impl Failures {
    /// Runs the simulation.
    ///
    /// # Errors
    /// When the core refuses a command of the simulation.
    pub fn run(&self) -> Result<FailuresReport, Refusal> {
        let mut random = Random::new(self.seed);
        let mut federation = FailingFederation::new(self.seed)?;
        while federation.report.events < self.events {
            for _ in 0..random.below(3) {
                federation.submit(&mut random)?;
            }
            federation.settle()?;
            for _ in 0..=random.below(2) {
                federation.fail_or_recover(&mut random)?;
            }
            federation.settle()?;
            federation.advance(Millis(random.bits() % (4 * MINUTE)))?;
        }
        Ok(federation.report)
    }
}
