//! What is asked of a pool: where a task costs least.

use super::Pool;
use crate::packing::lane::{Lane, Priced};
use crate::packing::rollout::FUTURES;
use crate::packing::scarcity::ONE;
use crate::packing::slots::SORTS;
use crate::packing::task::Task;

/// Where to put a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Nodes that are as good as each other; [`Pool::first_node`] says which is taken.
    spot: u32,
    /// Free thousandths of the device that a share comes from; several devices come from those that are whole.
    pub level: u16,
    /// Idle thousandths that the choice costs in the end, times the number of futures played, with prices.
    pub cost: i64,
}

impl Choice {
    /// Thousandths of devices that the choice leaves idle in the end, or keeps from it where negative.
    #[must_use]
    pub fn idle_milli(&self) -> i64 {
        self.cost.div_euclid(FUTURES as i64)
    }
}

/// Prices of what is scarce.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    /// By shape, in the fixed point of scarcity.
    scarcity: Vec<u64>,
    /// Of one slot, by sort.
    slots: [i64; SORTS],
}

/// What was chosen last: for a type of task, after so many changes of the pool, by site.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    /// `None`: costs were computed since.
    asked: Option<(u32, u64)>,
    /// By the number that shapes have which are as scarce as each other: what scarcity adds.
    prices: Vec<i64>,
    sites: Vec<Option<Option<Choice>>>,
}

impl Pool {
    /// The cheapest place for `task` at `site`; `None` if it fits nowhere there.
    pub fn choose(&mut self, site: u32, task: &Task) -> Option<Choice> {
        let number = self.make_ready(task);
        let at = site as usize;
        if self.chosen.sites.len() <= at {
            self.chosen.sites.resize(at + 1, None);
        }
        if self.chosen.sites[at].is_none() {
            self.chosen.sites[at] = Some(self.search(site, number));
        }
        self.chosen.sites[at].flatten()
    }

    /// Thousandths of devices that [`choose`](Self::choose) leaves idle at `site` in the end, or more: quicker to know. `None`
    /// if there is no place for it.
    pub fn idle_milli_at_least(&mut self, site: u32, task: &Task) -> Option<i64> {
        let number = self.make_ready(task);
        let lane = self.lanes[number as usize].as_ref()?;
        let least = self.fronts.of(site).filter_map(|front| self.at_least(lane, front)).min();
        least.map(|cost| cost.div_euclid(FUTURES as i64))
    }

    /// What the cheapest way of a lane on a front costs at least.
    fn at_least(&self, lane: &Lane, (front, number): (u32, u32)) -> Option<i64> {
        lane.least(front).map(|least| i64::from(least).saturating_add(self.chosen.prices[number as usize]))
    }

    /// Makes ready for questions about `task`; its number.
    fn make_ready(&mut self, task: &Task) -> u32 {
        self.prepare();
        let number = self.tasks.intern_ref(task);
        if self.lanes.len() <= number as usize {
            self.lanes.resize(number as usize + 1, None);
        }
        if self.chosen.asked != Some((number, self.changes)) {
            self.chosen.sites.clear();
            self.chosen.asked = Some((number, self.changes));
            self.feed(number, task);
        }
        number
    }

    /// The node that a choice takes: of those that are as good, the one with the lowest number.
    #[must_use]
    pub fn first_node(&self, choice: Choice) -> Option<u32> {
        self.spots.get(choice.spot as usize)?.nodes.last().copied()
    }

    /// The lane of a task takes in what changed.
    fn feed(&mut self, number: u32, task: &Task) {
        let Some(costs) = &mut self.costs else { return };
        let shapes = self.shapes.values();
        let lane = self.lanes[number as usize]
            .get_or_insert_with(|| Lane::on(shapes.iter().map(|shape| shape.could_run(task)).collect()));
        lane.asked = self.changes;
        lane.feed(&self.log, (number, task), (costs, &mut self.states), &self.fronts);
        let prices = || Prices {
            slots: costs.slot_prices(self.free_milli.iter().sum(), &self.slots),
            scarcity: costs.scarcity.of_shapes(&self.free_milli),
        };
        let prices = self.prices.get_or_insert_with(prices);
        let milli = task.device_milli() * FUTURES as u64;
        self.chosen.prices.clear();
        for (shape, scarcity) in prices.scarcity.iter().enumerate() {
            // Numbers are given in the order of shapes.
            if self.fronts.number(shape) as usize == self.chosen.prices.len() {
                self.chosen.prices.push(i64::try_from(scarcity * milli / ONE).unwrap_or(i64::MAX));
            }
        }
    }

    /// The cheapest place at `site` for the task of a number.
    fn search(&mut self, site: u32, number: u32) -> Option<Choice> {
        let mut lane = self.lanes[number as usize].take()?;
        let best = self.search_lane(site, &mut lane);
        self.lanes[number as usize] = Some(lane);
        let (cost, _, spot, level) = best?;
        Some(Choice { spot, level, cost })
    }

    fn search_lane(&self, site: u32, lane: &mut Lane) -> Option<Priced> {
        let (prices, costs) = (self.prices.as_ref()?, self.costs.as_ref()?);
        let lost = |loss: u32| {
            let slots = costs.losses.get(loss).iter().zip(prices.slots);
            slots.map(|(n, price)| i64::from(*n) * price).sum::<i64>()
        };
        // The cheapest front comes first: most others need not be looked into then.
        let first = self.fronts.of(site).filter_map(|front| Some((self.at_least(lane, front)?, front))).min()?.1;
        let mut best: Option<Priced> = None;
        for front in std::iter::once(first).chain(self.fronts.of(site).filter(|front| *front != first)) {
            let Some(at_least) = self.at_least(lane, front) else { continue };
            if best.is_none_or(|best| at_least <= best.0) {
                let price = self.chosen.prices[front.1 as usize];
                best = lane.cheapest(front.0, (best, price), lost, &self.live);
            }
        }
        best
    }
}
