//! Queries of the index: the cheapest place for a task.

use crate::scheduler::packing::assignments::{LiveGroups, PricedAssignment};
use crate::scheduler::packing::choice::Choice;
use crate::scheduler::packing::cost::Costs;
use crate::scheduler::packing::gang_slots::GANG_CLASSES;
use crate::scheduler::packing::ranking::{Ranking, TierId, Tiers};
use crate::scheduler::packing::rollout::ROLLOUTS;
use crate::scheduler::packing::scarcity::SCARCITY_ONE;
use crate::scheduler::packing::state_index::StateIndex;
use crate::scheduler::packing::task::Task;

/// Current prices of scarce shapes and gang slots.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    /// By shape, in the fixed point of [`SCARCITY_ONE`].
    scarcity: Vec<u64>,
    /// Price of one slot, by gang class.
    slots: [i64; GANG_CLASSES],
}

/// Handle of a task to query; valid until the index changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId(u32);

impl StateIndex {
    /// Prepares queries about `task`.
    pub fn ask(&mut self, task: &Task) -> TaskId {
        self.prepare();
        let number = self.tasks.intern_ref(task);
        if self.rankings.len() <= number as usize {
            self.rankings.resize(number as usize + 1, None);
        }
        if self.ranking(TaskId(number)).is_none_or(|ranking| ranking.answers.as_of != Some(self.changes)) {
            self.feed(number, task);
        }
        TaskId(number)
    }

    /// The cheapest place at `donor`; `None` if the task fits nowhere there.
    pub fn choose(&mut self, donor: u32, asked: TaskId) -> Option<Choice> {
        let (at, Some(prices), Some(costs)) = (donor as usize, &self.prices, &self.costs) else { return None };
        let ranking = self.rankings.get_mut(asked.0 as usize)?.as_mut()?;
        if ranking.answers.choices.len() <= at {
            ranking.answers.choices.resize(at + 1, None);
        }
        if let Some(known) = ranking.answers.choices[at] {
            return known;
        }
        let best = cheapest_at(ranking, donor, &self.tiers, prices, costs, &self.live);
        let choice = best.map(|best| Choice { group: best.group, level: best.level, cost: best.cost });
        ranking.answers.choices[at] = Some(choice);
        choice
    }

    /// A lower bound on [`Choice::idle_milli`] of [`choose`](Self::choose), and cheaper to compute. `None` if there is
    /// no place.
    #[must_use]
    pub fn idle_milli_at_least(&self, donor: u32, asked: TaskId) -> Option<i64> {
        let ranking = self.ranking(asked)?;
        let least = self.tiers.of_donor(donor).filter_map(|tier| least_cost(ranking, tier)).min();
        least.map(|cost| cost.div_euclid(ROLLOUTS as i64))
    }

    fn ranking(&self, asked: TaskId) -> Option<&Ranking> {
        self.rankings.get(asked.0 as usize)?.as_ref()
    }

    /// The lowest-numbered node of the chosen group.
    #[must_use]
    pub fn first_node(&self, choice: Choice) -> Option<u32> {
        self.groups.get(choice.group as usize)?.nodes.last().copied()
    }

    /// Feeds the ranking of a task from the log and updates its prices.
    fn feed(&mut self, number: u32, task: &Task) {
        let Some(costs) = &mut self.costs else { return };
        let shapes = self.shapes.values();
        let ranking = self.rankings[number as usize]
            .get_or_insert_with(|| Ranking::on(shapes.iter().map(|shape| shape.could_run(task)).collect()));
        ranking.feed(&self.log, task, costs, &mut self.states, &self.tiers);
        let prices = || Prices {
            slots: costs.slot_prices(self.free_milli.iter().sum(), &self.slots),
            scarcity: costs.scarcity.of_shapes(&self.free_milli),
        };
        let prices = self.prices.get_or_insert_with(prices);
        let milli = task.device_milli() * ROLLOUTS as u64;
        let answers = &mut ranking.answers;
        answers.as_of = Some(self.changes);
        answers.choices.clear();
        answers.prices.clear();
        for (shape, scarcity) in prices.scarcity.iter().enumerate() {
            // Classes are numbered in the order of their first shape.
            if self.tiers.scarcity_class(shape) as usize == answers.prices.len() {
                answers.prices.push(i64::try_from(scarcity * milli / SCARCITY_ONE).unwrap_or(i64::MAX));
            }
        }
    }
}

/// A lower bound on the cost of the assignments of a tier, with the price of scarcity.
fn least_cost(ranking: &Ranking, TierId { tier, scarcity_class }: TierId) -> Option<i64> {
    ranking
        .assignments
        .least(tier)
        .map(|least| i64::from(least).saturating_add(ranking.answers.prices[scarcity_class as usize]))
}

/// The cheapest assignment at a donor.
fn cheapest_at(
    ranking: &mut Ranking,
    donor: u32,
    tiers: &Tiers,
    prices: &Prices,
    costs: &Costs,
    live: &LiveGroups,
) -> Option<PricedAssignment> {
    let lost = |loss: u32| {
        let slots = costs.slots.get(loss).iter().zip(prices.slots);
        slots.map(|(n, price)| i64::from(*n) * price).sum::<i64>()
    };
    // Starting with the cheapest tier rules out most others.
    let first = tiers.of_donor(donor).filter_map(|tier| Some((least_cost(ranking, tier)?, tier))).min()?.1;
    let mut best: Option<PricedAssignment> = None;
    for tier in std::iter::once(first).chain(tiers.of_donor(donor).filter(|tier| *tier != first)) {
        let Some(least) = least_cost(ranking, tier) else { continue };
        if best.is_none_or(|best| least <= best.cost) {
            let price = ranking.answers.prices[tier.scarcity_class as usize];
            best = ranking.assignments.cheapest(tier.tier, best, price, lost, live);
        }
    }
    best
}
