//! What is asked of a index: where a task costs least.

use crate::scheduler::packing::assignments::{Live, PricedAssignment};
use crate::scheduler::packing::choice::Choice;
use crate::scheduler::packing::cost::Costs;
use crate::scheduler::packing::gang_slots::SORTS;
use crate::scheduler::packing::ranking::{Ranking, Tiers};
use crate::scheduler::packing::rollout::ROLLOUTS;
use crate::scheduler::packing::scarcity::ONE;
use crate::scheduler::packing::state_index::StateIndex;
use crate::scheduler::packing::task::Task;

/// Prices of what is scarce.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    /// By shape, in the fixed point of scarcity.
    scarcity: Vec<u64>,
    /// Of one slot, by sort.
    slots: [i64; SORTS],
}

/// A task that a index is asked about, until something of the index changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId(u32);

impl StateIndex {
    /// Makes ready for questions about `task`.
    pub fn ask(&mut self, task: &Task) -> TaskId {
        self.prepare();
        let number = self.tasks.intern_ref(task);
        if self.rankings.len() <= number as usize {
            self.rankings.resize(number as usize + 1, None);
        }
        if self.ranking(TaskId(number)).is_none_or(|ranking| ranking.answers.after != Some(self.changes)) {
            self.feed(number, task);
        }
        TaskId(number)
    }

    /// The cheapest place at `donor` for the task that was asked about; `None` if it fits nowhere there.
    pub fn choose(&mut self, donor: u32, asked: TaskId) -> Option<Choice> {
        let (at, Some(prices), Some(costs)) = (donor as usize, &self.prices, &self.costs) else { return None };
        let ranking = self.rankings.get_mut(asked.0 as usize)?.as_mut()?;
        if ranking.answers.choices.len() <= at {
            ranking.answers.choices.resize(at + 1, None);
        }
        if let Some(known) = ranking.answers.choices[at] {
            return known;
        }
        let best = search(ranking, (donor, &self.tiers), (prices, costs), &self.live);
        let choice = best.map(|(cost, _, group, level)| Choice { group, level, cost });
        ranking.answers.choices[at] = Some(choice);
        choice
    }

    /// Thousandths of devices that [`choose`](Self::choose) leaves idle at `donor` in the end, or more: quicker to know.
    /// `None` if there is no place for it.
    #[must_use]
    pub fn idle_milli_at_least(&self, donor: u32, asked: TaskId) -> Option<i64> {
        let ranking = self.ranking(asked)?;
        let least = self.tiers.of(donor).filter_map(|tier| at_least(ranking, tier)).min();
        least.map(|cost| cost.div_euclid(ROLLOUTS as i64))
    }

    fn ranking(&self, asked: TaskId) -> Option<&Ranking> {
        self.rankings.get(asked.0 as usize)?.as_ref()
    }

    /// The node that a choice takes: of those that are as good, the one with the lowest number.
    #[must_use]
    pub fn first_node(&self, choice: Choice) -> Option<u32> {
        self.groups.get(choice.group as usize)?.nodes.last().copied()
    }

    /// The ranking of a task takes in what changed.
    fn feed(&mut self, number: u32, task: &Task) {
        let Some(costs) = &mut self.costs else { return };
        let shapes = self.shapes.values();
        let ranking = self.rankings[number as usize]
            .get_or_insert_with(|| Ranking::on(shapes.iter().map(|shape| shape.could_run(task)).collect()));
        ranking.feed(&self.log, task, (costs, &mut self.states), &self.tiers);
        let prices = || Prices {
            slots: costs.slot_prices(self.free_milli.iter().sum(), &self.slots),
            scarcity: costs.scarcity.of_shapes(&self.free_milli),
        };
        let prices = self.prices.get_or_insert_with(prices);
        let milli = task.device_milli() * ROLLOUTS as u64;
        let answers = &mut ranking.answers;
        answers.after = Some(self.changes);
        answers.choices.clear();
        answers.prices.clear();
        for (shape, scarcity) in prices.scarcity.iter().enumerate() {
            // Numbers are given in the order of shapes.
            if self.tiers.number(shape) as usize == answers.prices.len() {
                answers.prices.push(i64::try_from(scarcity * milli / ONE).unwrap_or(i64::MAX));
            }
        }
    }
}

/// What the cheapest assignment of a ranking on a tier costs at least.
fn at_least(ranking: &Ranking, (tier, number): (u32, u32)) -> Option<i64> {
    ranking
        .assignments
        .least(tier)
        .map(|least| i64::from(least).saturating_add(ranking.answers.prices[number as usize]))
}

/// The cheapest assignment of a ranking at a donor.
fn search(
    ranking: &mut Ranking,
    (donor, tiers): (u32, &Tiers),
    (prices, costs): (&Prices, &Costs),
    live: &Live,
) -> Option<PricedAssignment> {
    let lost = |loss: u32| {
        let slots = costs.slots.get(loss).iter().zip(prices.slots);
        slots.map(|(n, price)| i64::from(*n) * price).sum::<i64>()
    };
    // The cheapest tier comes first: most others need not be looked into then.
    let first = tiers.of(donor).filter_map(|tier| Some((at_least(ranking, tier)?, tier))).min()?.1;
    let mut best: Option<PricedAssignment> = None;
    for tier in std::iter::once(first).chain(tiers.of(donor).filter(|tier| *tier != first)) {
        let Some(at_least) = at_least(ranking, tier) else { continue };
        if best.is_none_or(|best| at_least <= best.0) {
            let price = ranking.answers.prices[tier.1 as usize];
            best = ranking.assignments.cheapest(tier.0, (best, price), lost, live);
        }
    }
    best
}
