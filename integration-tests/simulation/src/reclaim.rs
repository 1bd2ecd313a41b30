//! Leases that are being reclaimed at random, by the broker's state machine and planner, and what must hold of that.
//!
//! Four donors lend whole GPUs to two clusters. Local work, terms and demand change at random; agents do at once what
//! they are asked, but for some that take their time to clear a lease. What is proposed is checked by arithmetic of its
//! own, which knows nothing but nodes with so many GPUs: all sets of a donor's leases are tried.

mod federation;
mod judge;
mod report;
mod request;
mod terms;

use comity_core::{Millis, Refusal};

use self::federation::Federation;
pub use self::report::ReclaimReport;
pub(crate) use self::request::request;
pub(crate) use self::terms::{DONORS, Terms, cluster, clusters, node, policy};
use crate::random::Random;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Reclaims {
    /// Seed of all that is drawn.
    pub seed: u64,
    /// Leases that are being reclaimed before it ends.
    pub reclaims: u64,
}

impl Reclaims {
    /// Runs it.
    ///
    /// # Errors
    /// What the core refused that it should not have.
    pub fn run(&self) -> Result<ReclaimReport, Refusal> {
        let mut random = Random::new(self.seed);
        let mut federation = Federation::new(self.seed)?;
        while federation.report.reclaimed < self.reclaims {
            for _ in 0..random.below(4) {
                federation.submit(&mut random)?;
            }
            match random.below(8) {
                0..=4 => federation.work_locally(&mut random)?,
                5 => federation.change_terms(&mut random)?,
                _ => {}
            }
            federation.settle()?;
            federation.save_some(&mut random)?;
            let pause = Millis(10 * SECOND + random.bits() % (12 * MINUTE));
            federation.pass(pause, &mut random)?;
        }
        Ok(federation.finish())
    }
}
