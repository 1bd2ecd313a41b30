//! The index of distinct node states: who has which, and the cheapest of them for each type of task.

use std::collections::{BTreeMap, BTreeSet};

use super::cost::{Costs, States};
use super::interner::Interner;
use super::lane::{Lane, Log, Way};
use super::mix::Mix;
use super::node_state::{NodeState, Shape};
use super::offers::ShapeTotal;
use super::rollout::FUTURES;
use super::scarcity::ONE;
use super::slots::{SORTS, Slots};
use super::task::Task;

/// States that are remembered, past ones among them; a state with eight devices takes about 200 bytes.
const MAX_STATES: usize = 1 << 21;
/// Types of task that are remembered.
const MAX_TASKS: usize = 1 << 14;

/// Where to put a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<N> {
    /// The node.
    pub node: N,
    /// Free thousandths of the device that a share comes from; several devices come from those that are whole.
    pub level: u16,
    /// Idle thousandths that the choice costs in the end, times the number of futures played, with prices.
    pub cost: i64,
}

impl<N> Choice<N> {
    /// Thousandths of devices that the choice leaves idle in the end, or keeps from it where negative.
    #[must_use]
    pub fn idle_milli(&self) -> i64 {
        self.cost.div_euclid(FUTURES as i64)
    }
}

/// What was chosen for a type of task, and after how many changes of the pool.
type Chosen<N> = (u64, Option<Choice<N>>);
/// Prices of what is scarce, after so many changes of the pool.
#[derive(Clone, Debug)]
struct Prices {
    changes: u64,
    /// By shape, in the fixed point of scarcity.
    scarcity: Vec<u64>,
    /// Of one slot, by sort.
    slots: [i64; SORTS],
}

/// Nodes by state, with what is needed to choose among them.
#[derive(Clone, Debug)]
pub struct Pool<N> {
    shapes: Interner<Shape>,
    totals: Vec<ShapeTotal>,
    free_milli: Vec<u64>,
    slots: [i64; SORTS],
    states: States,
    nodes: BTreeMap<N, u32>,
    members: Vec<BTreeSet<N>>,
    /// By state, whether it has members: a byte of each is at hand where its members are not.
    peopled: Vec<bool>,
    logs: Vec<Log>,
    mix: Mix,
    /// `None`: shapes or mix changed since costs were computed.
    costs: Option<Costs>,
    /// The last that were asked for; `None` if costs were computed since.
    prices: Option<Prices>,
    tasks: Interner<Task>,
    lanes: Vec<Vec<Option<Lane>>>,
    /// Changes so far of what nodes there are and what is free on them.
    changes: u64,
    /// By number of the task: what was chosen last, and after how many changes.
    chosen: Vec<Option<Chosen<N>>>,
}

impl<N: Clone + Ord> Default for Pool<N> {
    fn default() -> Self {
        Self {
            shapes: Interner::default(),
            totals: Vec::new(),
            free_milli: Vec::new(),
            slots: [0; SORTS],
            states: Interner::default(),
            nodes: BTreeMap::new(),
            members: Vec::new(),
            peopled: Vec::new(),
            logs: Vec::new(),
            mix: Mix::default(),
            costs: None,
            prices: None,
            tasks: Interner::default(),
            lanes: Vec::new(),
            changes: 0,
            chosen: Vec::new(),
        }
    }
}

impl<N: Clone + Ord> Pool<N> {
    /// Expects work like `mix` from now on.
    pub fn expect(&mut self, mix: Mix) {
        if self.mix != mix {
            self.mix = mix;
            self.costs = None;
        }
    }

    /// Adds `node`, or replaces what is known of it.
    pub fn set(&mut self, node: N, shape: &Shape, free: NodeState) {
        self.remove(&node);
        let shape_number = self.shapes.intern_ref(shape);
        let at = shape_number as usize;
        if self.totals.len() <= at {
            self.totals.push(ShapeTotal::default());
            self.free_milli.push(0);
            self.logs.push(Log::default());
        }
        self.totals[at].device_milli += shape.idle().device_milli();
        self.totals[at].cpu_milli += shape.cpu_milli;
        self.costs = None;
        let state = self.intern(shape_number, free);
        self.join(node, state);
    }

    /// Forgets `node`.
    pub fn remove(&mut self, node: &N) {
        let Some(state) = self.leave(node) else { return };
        let shape = self.states.get(state).0;
        let idle = self.shapes.get(shape);
        let total = &mut self.totals[shape as usize];
        total.device_milli -= idle.idle().device_milli();
        total.cpu_milli -= idle.cpu_milli;
        self.costs = None;
    }

    /// What is free on `node`.
    #[must_use]
    pub fn free(&self, node: &N) -> Option<&NodeState> {
        Some(&self.states.get(*self.nodes.get(node)?).1)
    }

    /// Says that `node` has `free` now.
    pub fn update(&mut self, node: &N, free: NodeState) {
        let Some(known) = self.nodes.get_mut(node) else { return };
        let state = *known;
        let next = self.states.intern((self.states.get(state).0, free));
        if next != state {
            *known = next;
            self.grow();
            self.count_out(node, state);
            self.count_in(node.clone(), next);
        }
    }

    /// Starts over with the states that some node is in: past ones, and what was computed for them, go.
    pub(super) fn forget(&mut self) {
        let past = std::mem::take(&mut self.states);
        self.members.clear();
        self.peopled.clear();
        self.costs = None;
        for log in &mut self.logs {
            *log = Log { generation: log.generation + 1, ..Log::default() };
        }
        self.free_milli.fill(0);
        for (node, state) in std::mem::take(&mut self.nodes) {
            let (shape, free) = past.get(state);
            let state = self.intern(*shape, free.clone());
            self.join(node, state);
        }
    }

    /// The cheapest place for `task`; `None` if it fits nowhere.
    pub fn choose(&mut self, task: &Task) -> Option<Choice<N>> {
        self.prepare();
        let number = self.tasks.intern_ref(task) as usize;
        if self.lanes.len() <= number {
            self.lanes.resize(number + 1, Vec::new());
            self.chosen.resize(number + 1, None);
        }
        if let Some((changes, chosen)) = &self.chosen[number]
            && *changes == self.changes
        {
            return chosen.clone();
        }
        let choice = self.search(task, number);
        self.chosen[number] = Some((self.changes, choice.clone()));
        choice
    }

    /// The cheapest place for `task`, whose number is `number`.
    fn search(&mut self, task: &Task, number: usize) -> Option<Choice<N>> {
        let costs = self.costs.as_mut()?;
        if self.prices.as_ref().is_none_or(|prices| prices.changes != self.changes) {
            let slots = costs.slot_prices(self.free_milli.iter().sum(), &self.slots);
            let scarcity = costs.scarcity.of_shapes(&self.free_milli);
            self.prices = Some(Prices { changes: self.changes, scarcity, slots });
        }
        let prices = self.prices.as_ref()?;
        let lanes = &mut self.lanes[number];
        lanes.resize(self.shapes.len(), None);
        // The cheapest lane comes first: most others need not be looked into then.
        let (mut order, mut first) = (Vec::with_capacity(lanes.len()), None);
        for (shape, lane) in lanes.iter_mut().enumerate() {
            if !self.shapes.values()[shape].could_run(task) {
                continue;
            }
            let lane = lane.get_or_insert_default();
            lane.feed(&self.logs[shape], (number, task), costs, &mut self.states, &self.peopled);
            let price = prices.scarcity[shape] * task.device_milli() * FUTURES as u64 / ONE;
            let price = i64::try_from(price).unwrap_or(i64::MAX);
            let least = lane.least.saturating_add(price);
            if first.is_none_or(|(cheapest, _)| least < cheapest) {
                first = Some((least, order.len()));
            }
            order.push((lane, price));
        }
        if let Some((_, at)) = first {
            order.swap(0, at);
        }
        let mut best: Option<Way> = None;
        for (lane, price) in order {
            let surpassed = best.is_some_and(|best| lane.least.saturating_add(price) > best.0);
            if !surpassed {
                let lost = |loss: u32| {
                    let slots = costs.losses.get(loss).iter().zip(prices.slots);
                    slots.map(|(n, price)| i64::from(*n) * price).sum::<i64>()
                };
                best = lane.cheapest((best, price), lost, &self.peopled);
            }
        }
        let (cost, _, state, level) = best?;
        let node = self.members[state as usize].first()?.clone();
        Some(Choice { node, level, cost })
    }

    fn intern(&mut self, shape: u32, free: NodeState) -> u32 {
        let state = self.states.intern((shape, free));
        self.grow();
        state
    }

    /// Each state has a place for its members.
    fn grow(&mut self) {
        self.members.resize(self.states.len(), BTreeSet::new());
        self.peopled.resize(self.states.len(), false);
    }

    fn join(&mut self, node: N, state: u32) {
        self.nodes.insert(node.clone(), state);
        self.count_in(node, state);
    }

    fn count_in(&mut self, node: N, state: u32) {
        self.changes += 1;
        let (shape, free) = self.states.get(state);
        let shape = *shape as usize;
        self.free_milli[shape] += free.device_milli();
        if let Some(costs) = &self.costs {
            add_slots(&mut self.slots, costs.gangs.slots(shape as u32, free), 1);
        }
        let members = &mut self.members[state as usize];
        if members.is_empty() {
            let tie = free.digest_with(self.shapes.digest(shape as u32));
            self.logs[shape].states.push((state, tie));
            self.logs[shape].live += 1;
            self.peopled[state as usize] = true;
        }
        members.insert(node);
    }

    fn leave(&mut self, node: &N) -> Option<u32> {
        let state = self.nodes.remove(node)?;
        self.count_out(node, state);
        Some(state)
    }

    fn count_out(&mut self, node: &N, state: u32) {
        let (shape, free) = self.states.get(state);
        let shape = *shape as usize;
        self.free_milli[shape] -= free.device_milli();
        if let Some(costs) = &self.costs {
            add_slots(&mut self.slots, costs.gangs.slots(shape as u32, free), -1);
        }
        let members = &mut self.members[state as usize];
        members.remove(node);
        if members.is_empty() {
            self.logs[shape].live -= 1;
            self.peopled[state as usize] = false;
        }
    }

    /// Computes what went stale, forgets states and tasks once they are too many, and shortens logs that are mostly past.
    fn prepare(&mut self) {
        if self.tasks.len() > MAX_TASKS {
            self.tasks = Interner::default();
            self.costs = None;
        }
        if self.states.len() > MAX_STATES.max(4 * self.nodes.len()) {
            self.forget();
        }
        if self.costs.is_none() {
            let costs = Costs::new(&self.mix, self.shapes.values(), &self.totals);
            self.slots = [0; SORTS];
            for state in self.nodes.values() {
                let (shape, free) = self.states.get(*state);
                add_slots(&mut self.slots, costs.gangs.slots(*shape, free), 1);
            }
            self.costs = Some(costs);
            self.prices = None;
            self.lanes.clear();
            self.chosen.clear();
        }
        for log in &mut self.logs {
            if log.states.len() > 4 * log.live + 64 {
                log.states.sort_unstable();
                log.states.dedup();
                log.states.retain(|&(state, _)| self.peopled[state as usize]);
                log.generation += 1;
            }
        }
    }
}

fn add_slots(total: &mut [i64; SORTS], slots: Slots, times: i64) {
    for (total, slots) in total.iter_mut().zip(slots) {
        *total += times * i64::from(slots);
    }
}

#[cfg(test)]
impl<N: Clone + Ord> Pool<N> {
    /// Shapes, what there is of each, and an empty table of states.
    pub(super) fn parts(&mut self) -> (&mut Interner<Shape>, Vec<ShapeTotal>, States) {
        (&mut self.shapes, self.totals.clone(), States::default())
    }
}
