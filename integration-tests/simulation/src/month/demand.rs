//! What is asked for, and when: drawn by a seed.

use super::HOUR;
use super::terms::{MEMBERS, TENANTS};
use crate::random::Random;

/// First and last hour of a working day, by the local clock.
const WORKING_HOURS: std::ops::Range<u64> = 8..20;
/// Chance that a tenant asks within one step, in thousandths, by day and by night.
const CHANCE_BY_DAY: usize = 800;
const CHANCE_BY_NIGHT: usize = 200;

/// Draws requests.
pub(super) struct Demand {
    random: Random,
}

/// One request.
pub(super) struct Asked {
    /// Whole GPUs, on one node.
    pub(super) gpus: u32,
    /// Length of the lease in milliseconds.
    pub(super) duration_ms: u64,
}

impl Demand {
    pub(super) fn new(random: Random) -> Self {
        Self { random }
    }

    /// Whether a tenant asks now, `elapsed` milliseconds after a midnight of the first member. Tenants of one
    /// institution together ask as much as that of another.
    pub(super) fn arrivals(&mut self, tenant: usize, elapsed: u64) -> usize {
        let (_, of, _) = TENANTS[tenant];
        let colleagues = TENANTS.iter().filter(|(_, other, _)| *other == of).count();
        let chance = if is_working(of, elapsed) { CHANCE_BY_DAY } else { CHANCE_BY_NIGHT };
        usize::from(self.random.below(1_000 * colleagues) < chance)
    }

    /// One or two GPUs for two to six hours: small beside what the smallest tenant is entitled to.
    pub(super) fn draw(&mut self) -> Asked {
        let gpus = [1, 1, 1, 1, 1, 2, 2, 2][self.random.below(8)];
        let hours = u64::try_from(2 + self.random.below(5)).unwrap_or(2);
        Asked { gpus, duration_ms: hours * HOUR }
    }
}

/// Whether it is a working hour at a member.
pub(super) fn is_working(member: usize, elapsed: u64) -> bool {
    WORKING_HOURS.contains(&((elapsed / HOUR + MEMBERS[member].ahead) % 24))
}
