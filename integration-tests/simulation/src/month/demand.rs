//! Draws requests and their times from a seed.

use super::institutions::{MEMBERS, TENANTS};
use crate::random::Random;
use crate::time::HOUR;

/// First and last hour of a working day, by the local clock.
const WORKING_HOURS: std::ops::Range<u64> = 8..20;
/// Probability of a request per tenant and step, in thousandths, by day and by night.
const CHANCE_BY_DAY: usize = 800;
const CHANCE_BY_NIGHT: usize = 200;

/// Draws requests.
pub(super) struct Demand {
    random: Random,
}

/// A drawn request.
pub(super) struct DrawnRequest {
    /// Whole GPUs, on one node.
    pub(super) gpus: u32,
    /// Length of the lease in milliseconds.
    pub(super) duration_ms: u64,
}

impl Demand {
    pub(super) fn new(random: Random) -> Self {
        Self { random }
    }

    /// Number of requests of a tenant, 0 or 1, at `elapsed` milliseconds after a midnight of the first member. All
    /// institutions have the same demand, whatever their number of tenants.
    pub(super) fn arrivals(&mut self, tenant: usize, elapsed: u64) -> usize {
        let (_, of, _) = TENANTS[tenant];
        let colleagues = TENANTS.iter().filter(|(_, other, _)| *other == of).count();
        let chance = if is_working(of, elapsed) { CHANCE_BY_DAY } else { CHANCE_BY_NIGHT };
        usize::from(self.random.below(1_000 * colleagues) < chance)
    }

    /// One or two GPUs for two to six hours: little compared with the smallest entitlement.
    pub(super) fn draw(&mut self) -> DrawnRequest {
        let gpus = [1, 1, 1, 1, 1, 2, 2, 2][self.random.below(8)];
        let hours = u64::try_from(2 + self.random.below(5)).unwrap_or(2);
        DrawnRequest { gpus, duration_ms: hours * HOUR }
    }
}

/// Whether it is a working hour at a member.
pub(super) fn is_working(member: usize, elapsed: u64) -> bool {
    WORKING_HOURS.contains(&((elapsed / HOUR + MEMBERS[member].ahead) % 24))
}
