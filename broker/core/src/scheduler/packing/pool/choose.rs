//! What is asked of a pool: where a task costs least.

use crate::scheduler::packing::choice::Choice;
use crate::scheduler::packing::cost::Costs;
use crate::scheduler::packing::lane::{Fronts, Lane};
use crate::scheduler::packing::pool::Pool;
use crate::scheduler::packing::rollout::FUTURES;
use crate::scheduler::packing::scarcity::ONE;
use crate::scheduler::packing::slots::SORTS;
use crate::scheduler::packing::task::Task;
use crate::scheduler::packing::ways::{Live, Priced};

/// Prices of what is scarce.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    /// By shape, in the fixed point of scarcity.
    scarcity: Vec<u64>,
    /// Of one slot, by sort.
    slots: [i64; SORTS],
}

/// A task that a pool is asked about, until something of the pool changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked(u32);

impl Pool {
    /// Makes ready for questions about `task`.
    pub fn ask(&mut self, task: &Task) -> Asked {
        self.prepare();
        let number = self.tasks.intern_ref(task);
        if self.lanes.len() <= number as usize {
            self.lanes.resize(number as usize + 1, None);
        }
        if self.lane(Asked(number)).is_none_or(|lane| lane.answers.after != Some(self.changes)) {
            self.feed(number, task);
        }
        Asked(number)
    }

    /// The cheapest place at `site` for the task that was asked about; `None` if it fits nowhere there.
    pub fn choose(&mut self, site: u32, asked: Asked) -> Option<Choice> {
        let (at, Some(prices), Some(costs)) = (site as usize, &self.prices, &self.costs) else { return None };
        let lane = self.lanes.get_mut(asked.0 as usize)?.as_mut()?;
        if lane.answers.choices.len() <= at {
            lane.answers.choices.resize(at + 1, None);
        }
        if let Some(known) = lane.answers.choices[at] {
            return known;
        }
        let best = search(lane, (site, &self.fronts), (prices, costs), &self.live);
        let choice = best.map(|(cost, _, spot, level)| Choice { spot, level, cost });
        lane.answers.choices[at] = Some(choice);
        choice
    }

    /// Thousandths of devices that [`choose`](Self::choose) leaves idle at `site` in the end, or more: quicker to know.
    /// `None` if there is no place for it.
    #[must_use]
    pub fn idle_milli_at_least(&self, site: u32, asked: Asked) -> Option<i64> {
        let lane = self.lane(asked)?;
        let least = self.fronts.of(site).filter_map(|front| at_least(lane, front)).min();
        least.map(|cost| cost.div_euclid(FUTURES as i64))
    }

    fn lane(&self, asked: Asked) -> Option<&Lane> {
        self.lanes.get(asked.0 as usize)?.as_ref()
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
        lane.feed(&self.log, task, (costs, &mut self.states), &self.fronts);
        let prices = || Prices {
            slots: costs.slot_prices(self.free_milli.iter().sum(), &self.slots),
            scarcity: costs.scarcity.of_shapes(&self.free_milli),
        };
        let prices = self.prices.get_or_insert_with(prices);
        let milli = task.device_milli() * FUTURES as u64;
        let answers = &mut lane.answers;
        answers.after = Some(self.changes);
        answers.choices.clear();
        answers.prices.clear();
        for (shape, scarcity) in prices.scarcity.iter().enumerate() {
            // Numbers are given in the order of shapes.
            if self.fronts.number(shape) as usize == answers.prices.len() {
                answers.prices.push(i64::try_from(scarcity * milli / ONE).unwrap_or(i64::MAX));
            }
        }
    }
}

/// What the cheapest way of a lane on a front costs at least.
fn at_least(lane: &Lane, (front, number): (u32, u32)) -> Option<i64> {
    lane.ways.least(front).map(|least| i64::from(least).saturating_add(lane.answers.prices[number as usize]))
}

/// The cheapest way of a lane at a site.
fn search(
    lane: &mut Lane,
    (site, fronts): (u32, &Fronts),
    (prices, costs): (&Prices, &Costs),
    live: &Live,
) -> Option<Priced> {
    let lost = |loss: u32| {
        let slots = costs.slots.get(loss).iter().zip(prices.slots);
        slots.map(|(n, price)| i64::from(*n) * price).sum::<i64>()
    };
    // The cheapest front comes first: most others need not be looked into then.
    let first = fronts.of(site).filter_map(|front| Some((at_least(lane, front)?, front))).min()?.1;
    let mut best: Option<Priced> = None;
    for front in std::iter::once(first).chain(fronts.of(site).filter(|front| *front != first)) {
        let Some(at_least) = at_least(lane, front) else { continue };
        if best.is_none_or(|best| at_least <= best.0) {
            let price = lane.answers.prices[front.1 as usize];
            best = lane.ways.cheapest(front.0, (best, price), lost, live);
        }
    }
    best
}
