//! Assignments to put one type of task on nodes, sorted as far as it takes to know the cheapest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::scheduler::packing::cost::LevelCost;
use crate::scheduler::packing::log::Entry;

/// So many assignments more than twice as many as were left the last time are looked through for those that are past.
const UNTIDY: usize = 64;

/// A way to put a task on the nodes of a group: cost, digest of their state, the group, level.
type Assignment = (i32, u32, u32, u16);
/// The same with all prices.
pub(crate) type PricedAssignment = (i64, u32, u32, u16);

/// By group, whether it has nodes: a bit of each is at hand where the rest is not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    bits: Vec<u64>,
}

impl Live {
    /// Says it of a group; of those that nothing was said of, it has none.
    pub(crate) fn set(&mut self, group: u32, live: bool) {
        let (at, bit) = (group as usize / 64, 1 << (group % 64));
        if self.bits.len() <= at {
            self.bits.resize(at + 1, 0);
        }
        if live { self.bits[at] |= bit } else { self.bits[at] &= !bit }
    }

    fn is(&self, group: u32) -> bool {
        self.bits.get(group as usize / 64).is_some_and(|bits| bits & 1 << (group % 64) != 0)
    }
}

/// Assignments by tier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assignments {
    /// By tier, what its cheapest assignment costs at least, without prices: most tiers are passed over by it.
    least: Vec<i32>,
    tiers: Vec<Tier>,
    /// How many they are.
    held: usize,
}

/// Assignments on the nodes of one tier.
#[derive(Clone, Debug)]
struct Tier {
    /// Those that came since it was sorted: hardly any is the cheapest, and most are past before it is sorted again.
    new: Vec<New>,
    /// What the cheapest of them costs without prices.
    least_new: i32,
    /// How many there were after those that are past were forgotten the last time.
    tidy: usize,
    /// One for each number of slots taken away.
    rows: Vec<Row>,
    /// Assignments that it holds.
    held: usize,
}

impl Default for Tier {
    fn default() -> Self {
        Self { new: Vec::new(), least_new: i32::MAX, tidy: 0, rows: Vec::new(), held: 0 }
    }
}

/// A way that is in no row yet, and the number of the slots that it takes away.
type New = (Assignment, u32);

/// Assignments that take the same slots away: their price changes.
#[derive(Clone, Debug)]
struct Row {
    /// What its cheapest assignment costs without prices: by it most rows are passed over.
    least: i32,
    /// Number of the slots.
    loss: u32,
    /// Some on groups that have no node any more, and some twice.
    assignments: BinaryHeap<Reverse<Assignment>>,
    /// How many there were after it was last tidied up.
    tidy: usize,
}

impl Assignments {
    /// How many they are; some are past, and some there twice.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// One more assignment, on the group of an entry.
    pub(crate) fn push(&mut self, tier: usize, entry: &Entry, assignment: LevelCost) {
        if self.tiers.len() <= tier {
            self.tiers.resize(tier + 1, Tier::default());
            self.least.resize(tier + 1, i32::MAX);
        }
        self.least[tier] = assignment.cost.min(self.least[tier]);
        let tier = &mut self.tiers[tier];
        tier.least_new = assignment.cost.min(tier.least_new);
        tier.new.push(((assignment.cost, entry.tie, entry.group, assignment.level), assignment.loss));
        tier.held += 1;
        self.held += 1;
    }

    /// What the cheapest assignment on a tier costs at least, without prices; `None` if there is none.
    pub(crate) fn least(&self, tier: u32) -> Option<i32> {
        self.least.get(tier as usize).copied().filter(|least| *least != i32::MAX)
    }

    /// The cheapest assignment on a tier, or `best` if that is cheaper. `price` comes on top of what each assignment costs, and what
    /// is `lost` with the slots that it takes away.
    pub(crate) fn cheapest(
        &mut self,
        tier: u32,
        (best, price): (Option<PricedAssignment>, i64),
        lost: impl Fn(u32) -> i64,
        live: &Live,
    ) -> Option<PricedAssignment> {
        let at = tier as usize;
        let Some(tier) = self.tiers.get_mut(at) else { return best };
        let before = tier.held;
        let mut best = tier.cheapest((best, price), &lost, live);
        if best.is_none_or(|best| i64::from(tier.least_new).saturating_add(price) <= best.0) && !tier.new.is_empty() {
            tier.sort_in(live);
            best = tier.cheapest((best, price), &lost, live);
        } else if tier.new.len() > 2 * tier.tidy + UNTIDY {
            tier.forget_past(live);
        }
        self.least[at] = tier.rows.iter().map(|row| row.least).fold(tier.least_new, i32::min);
        self.held -= before - tier.held;
        best
    }
}

impl Tier {
    /// The cheapest way that is in a row, or `best` if that is cheaper; what is past goes.
    fn cheapest(
        &mut self,
        (mut best, price): (Option<PricedAssignment>, i64),
        lost: impl Fn(u32) -> i64,
        live: &Live,
    ) -> Option<PricedAssignment> {
        for row in &mut self.rows {
            // Slots only become fewer, and prices are not negative: what costs more without them costs more with them.
            if best.is_some_and(|best| i64::from(row.least).saturating_add(price) > best.0) {
                continue;
            }
            let price = price + lost(row.loss);
            while best.is_none_or(|best| i64::from(row.least).saturating_add(price) <= best.0)
                && let Some(&Reverse((cost, tie, group, level))) = row.assignments.peek()
            {
                if live.is(group) {
                    let assignment = (i64::from(cost) + price, tie, group, level);
                    best = Some(best.map_or(assignment, |best| best.min(assignment)));
                    break;
                }
                row.assignments.pop();
                self.held -= 1;
                row.least = row.assignments.peek().map_or(i32::MAX, |Reverse(assignment)| assignment.0);
            }
        }
        best
    }

    /// Puts those that are new into their rows, unless their groups have no nodes any more.
    fn sort_in(&mut self, live: &Live) {
        self.forget_past(live);
        for (assignment, loss) in self.new.drain(..) {
            let at = self.rows.iter().position(|row| row.loss == loss).unwrap_or_else(|| {
                self.rows.push(Row { least: i32::MAX, loss, assignments: BinaryHeap::new(), tidy: 0 });
                self.rows.len() - 1
            });
            let row = &mut self.rows[at];
            row.least = row.least.min(assignment.0);
            if row.assignments.len() > 2 * row.tidy + UNTIDY {
                self.held -= row.tidy_up(live);
            }
            row.assignments.push(Reverse(assignment));
        }
        (self.least_new, self.tidy) = (i32::MAX, 0);
    }

    /// Forgets those of the new whose groups have no nodes any more.
    fn forget_past(&mut self, live: &Live) {
        let before = self.new.len();
        self.new.retain(|(assignment, _)| live.is(assignment.2));
        self.held -= before - self.new.len();
        self.least_new = self.new.iter().map(|(assignment, _)| assignment.0).min().unwrap_or(i32::MAX);
        self.tidy = self.new.len();
    }
}

impl Row {
    /// Forgets assignments on groups without nodes, and those that are there twice; how many.
    fn tidy_up(&mut self, live: &Live) -> usize {
        let before = self.assignments.len();
        let mut assignments = std::mem::take(&mut self.assignments).into_vec();
        assignments.retain(|Reverse(assignment)| live.is(assignment.2));
        assignments.sort_unstable();
        assignments.dedup();
        self.tidy = assignments.len();
        self.assignments = BinaryHeap::from(assignments);
        before - self.tidy
    }
}
