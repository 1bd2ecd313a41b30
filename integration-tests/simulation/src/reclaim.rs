//! Reclaims leases at random with the broker's state machine and planner, and checks the invariants of reclaims.
//!
//! Four donors lend whole GPUs to two clusters. Local work, terms and demand change at random. Agents carry out orders
//! at once, except for some slow teardowns. An independent checker, which knows only the GPUs of each node, compares
//! every proposed set of leases with all other sets of the donor.

mod checker;
mod reclaim_federation;
mod reclaim_report;
mod request;
mod terms;

use comity_core::{Millis, Refusal};

use self::reclaim_federation::ReclaimFederation;
pub use self::reclaim_report::ReclaimReport;
pub(crate) use self::request::request;
pub(crate) use self::terms::{DONORS, Terms, cluster, clusters, node, policy};
use crate::random::Random;
use crate::time::{MINUTE, SECOND};

/// The parameters of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Reclaims {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Leases to reclaim before the simulation ends.
    pub reclaims: u64,
}

impl Reclaims {
    /// Runs the simulation.
    ///
    /// # Errors
    /// When the core refuses a command of the simulation.
    pub fn run(&self) -> Result<ReclaimReport, Refusal> {
        let mut random = Random::new(self.seed);
        let mut federation = ReclaimFederation::new(self.seed)?;
        while federation.report.reclaimed < self.reclaims {
            for _ in 0..random.below(4) {
                federation.submit(&mut random)?;
            }
            match random.below(8) {
                0..=4 => federation.change_local_work(&mut random)?,
                5 => federation.change_terms(&mut random)?,
                _ => {}
            }
            federation.settle()?;
            federation.report_some_saved(&mut random)?;
            let pause = Millis(10 * SECOND + random.bits() % (12 * MINUTE));
            federation.advance(pause, &mut random)?;
        }
        Ok(federation.finish())
    }
}
