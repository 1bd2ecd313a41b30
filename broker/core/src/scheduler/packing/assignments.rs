//! Assignments of one task type to node groups, sorted only as far as finding the cheapest requires.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::scheduler::packing::cost::LevelCost;
use crate::scheduler::packing::log::LogEntry;

/// A list is pruned of dead assignments once it exceeds twice its size after the last prune by this many.
const PRUNE_SLACK: usize = 64;

/// A task on the nodes of a group. Compared in the order of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Assignment {
    /// Without prices.
    cost: i32,
    /// Digest of the state of the nodes.
    tie: u32,
    group: u32,
    /// Free thousandths of the device that supplies a share.
    level: u16,
}

/// An assignment with its price. Compared in the order of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PricedAssignment {
    /// With all prices.
    pub(crate) cost: i64,
    tie: u32,
    pub(crate) group: u32,
    pub(crate) level: u16,
}

/// One bit per group: whether the group has nodes. Denser than the groups themselves, so that lookups stay in cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveGroups {
    bits: Vec<u64>,
}

impl LiveGroups {
    pub(crate) fn insert(&mut self, group: u32) {
        let at = group as usize / 64;
        if self.bits.len() <= at {
            self.bits.resize(at + 1, 0);
        }
        self.bits[at] |= 1 << (group % 64);
    }

    /// Removes a group that was inserted before.
    pub(crate) fn remove(&mut self, group: u32) {
        self.bits[group as usize / 64] &= !(1 << (group % 64));
    }

    fn contains(&self, group: u32) -> bool {
        self.bits.get(group as usize / 64).is_some_and(|bits| bits & 1 << (group % 64) != 0)
    }
}

/// Assignments by tier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assignments {
    /// By tier, a lower bound on the cost of its assignments, without prices. It rules out most tiers.
    least: Vec<i32>,
    tiers: Vec<Tier>,
    held: usize,
}

/// Assignments on the nodes of one tier.
#[derive(Clone, Debug)]
struct Tier {
    /// Assignments not yet sorted into rows. Few of them are ever the cheapest, and most die before the next sort.
    new: Vec<Unsorted>,
    /// Lowest cost in `new`, without prices.
    least_new: i32,
    /// Length of `new` after it was last pruned.
    kept_by_last_prune: usize,
    /// One row per slot loss.
    rows: Vec<Row>,
    /// Number of assignments in `new` and in all rows.
    held: usize,
}

impl Default for Tier {
    fn default() -> Self {
        Self { new: Vec::new(), least_new: i32::MAX, kept_by_last_prune: 0, rows: Vec::new(), held: 0 }
    }
}

/// An assignment that is in no row yet.
#[derive(Clone, Copy, Debug)]
struct Unsorted {
    assignment: Assignment,
    /// Id of the slots lost.
    loss: u32,
}

/// Assignments that lose the same slots. They share one slot price, which changes over time.
#[derive(Clone, Debug)]
struct Row {
    /// Lowest cost in the row, without prices. It rules out most rows.
    least: i32,
    /// Id of the slots lost.
    loss: u32,
    /// Includes assignments to dead groups, and duplicates.
    assignments: BinaryHeap<Reverse<Assignment>>,
    /// Length after the last prune.
    kept_by_last_prune: usize,
}

impl Assignments {
    /// Number of assignments, including dead ones and duplicates.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Adds an assignment to the group of `entry`.
    pub(crate) fn push(&mut self, tier: usize, entry: &LogEntry, assignment: LevelCost) {
        if self.tiers.len() <= tier {
            self.tiers.resize(tier + 1, Tier::default());
            self.least.resize(tier + 1, i32::MAX);
        }
        self.least[tier] = assignment.cost.min(self.least[tier]);
        let tier = &mut self.tiers[tier];
        tier.least_new = assignment.cost.min(tier.least_new);
        let LevelCost { cost, level, loss, .. } = assignment;
        tier.new.push(Unsorted { assignment: Assignment { cost, tie: entry.tie, group: entry.group, level }, loss });
        tier.held += 1;
        self.held += 1;
    }

    /// A lower bound on the cost of the assignments of a tier, without prices; `None` if the tier has none.
    pub(crate) fn least(&self, tier: u32) -> Option<i32> {
        self.least.get(tier as usize).copied().filter(|least| *least != i32::MAX)
    }

    /// The cheapest assignment of a tier, or `best` if that is cheaper. `price` is added to the cost of every
    /// assignment, and `lost` to the cost of those with that slot loss.
    pub(crate) fn cheapest(
        &mut self,
        tier: u32,
        best: Option<PricedAssignment>,
        price: i64,
        lost: impl Fn(u32) -> i64,
        live: &LiveGroups,
    ) -> Option<PricedAssignment> {
        let at = tier as usize;
        let Some(tier) = self.tiers.get_mut(at) else { return best };
        let before = tier.held;
        let mut best = tier.cheapest(best, price, &lost, live);
        if best.is_none_or(|best| i64::from(tier.least_new).saturating_add(price) <= best.cost) && !tier.new.is_empty()
        {
            tier.sort_in(live);
            best = tier.cheapest(best, price, &lost, live);
        } else if tier.new.len() > 2 * tier.kept_by_last_prune + PRUNE_SLACK {
            tier.prune_new(live);
        }
        self.least[at] = tier.rows.iter().map(|row| row.least).fold(tier.least_new, i32::min);
        self.held -= before - tier.held;
        best
    }
}

impl Tier {
    /// The cheapest sorted assignment, or `best` if that is cheaper. Drops dead assignments on its way.
    fn cheapest(
        &mut self,
        mut best: Option<PricedAssignment>,
        price: i64,
        lost: impl Fn(u32) -> i64,
        live: &LiveGroups,
    ) -> Option<PricedAssignment> {
        for row in &mut self.rows {
            // Slots only shrink and prices are not negative, so slot losses only add to the cost.
            if best.is_some_and(|best| i64::from(row.least).saturating_add(price) > best.cost) {
                continue;
            }
            let price = price + lost(row.loss);
            while best.is_none_or(|best| i64::from(row.least).saturating_add(price) <= best.cost)
                && let Some(&Reverse(Assignment { cost, tie, group, level })) = row.assignments.peek()
            {
                if live.contains(group) {
                    let assignment = PricedAssignment { cost: i64::from(cost) + price, tie, group, level };
                    best = Some(best.map_or(assignment, |best| best.min(assignment)));
                    break;
                }
                row.assignments.pop();
                self.held -= 1;
                row.least = row.assignments.peek().map_or(i32::MAX, |Reverse(assignment)| assignment.cost);
            }
        }
        best
    }

    /// Sorts new assignments to live groups into their rows.
    fn sort_in(&mut self, live: &LiveGroups) {
        self.prune_new(live);
        for Unsorted { assignment, loss } in self.new.drain(..) {
            let at = self.rows.iter().position(|row| row.loss == loss).unwrap_or_else(|| {
                self.rows.push(Row { least: i32::MAX, loss, assignments: BinaryHeap::new(), kept_by_last_prune: 0 });
                self.rows.len() - 1
            });
            let row = &mut self.rows[at];
            row.least = row.least.min(assignment.cost);
            if row.assignments.len() > 2 * row.kept_by_last_prune + PRUNE_SLACK {
                self.held -= row.prune(live);
            }
            row.assignments.push(Reverse(assignment));
        }
        (self.least_new, self.kept_by_last_prune) = (i32::MAX, 0);
    }

    /// Drops new assignments to dead groups.
    fn prune_new(&mut self, live: &LiveGroups) {
        let before = self.new.len();
        self.new.retain(|new| live.contains(new.assignment.group));
        self.held -= before - self.new.len();
        self.least_new = self.new.iter().map(|new| new.assignment.cost).min().unwrap_or(i32::MAX);
        self.kept_by_last_prune = self.new.len();
    }
}

impl Row {
    /// Drops assignments to dead groups, and duplicates; returns how many.
    fn prune(&mut self, live: &LiveGroups) -> usize {
        let before = self.assignments.len();
        let mut assignments = std::mem::take(&mut self.assignments).into_vec();
        assignments.retain(|Reverse(assignment)| live.contains(assignment.group));
        assignments.sort_unstable();
        assignments.dedup();
        self.kept_by_last_prune = assignments.len();
        self.assignments = BinaryHeap::from(assignments);
        before - self.kept_by_last_prune
    }
}
