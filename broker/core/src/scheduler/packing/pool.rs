//! The index of distinct node states: who has which, and the cheapest of them for each type of task.

pub(crate) mod choose;

use smallvec::SmallVec;

use self::choose::Prices;
use crate::collections::int_map::Index;
use crate::collections::interner::Interner;
use crate::scheduler::packing::cost::{Costs, States};
use crate::scheduler::packing::lane::{Fronts, Lane};
use crate::scheduler::packing::log::{Entry, Log};
use crate::scheduler::packing::mix::Mix;
use crate::scheduler::packing::node_state::{NodeState, Shape};
use crate::scheduler::packing::offers::ShapeTotal;
use crate::scheduler::packing::slots::{SORTS, Slots};
use crate::scheduler::packing::task::Task;
use crate::scheduler::packing::ways::Live;

pub use self::choose::Asked;

/// States that are remembered, past ones among them; a state with eight devices takes about 200 bytes.
const MAX_STATES: usize = 1 << 21;
/// Types of task that are remembered.
const MAX_TASKS: usize = 1 << 14;
/// Ways that lanes hold and states that they know of, 24 bytes each: of more, the lanes that were not asked for the
/// longest are forgotten.
const MAX_HELD: usize = 1 << 25;
/// Costs are computed again once the nodes of a shape became more or fewer by so large a part of what there was: 1/8.
const DRIFT: u64 = 8;

/// No spot.
const NONE: u32 = u32::MAX;

/// Nodes of one donor.
#[derive(Clone, Debug, Default)]
struct Site {
    /// The spot of each node, by its number.
    nodes: Vec<u32>,
}

/// Nodes of one site in one state.
#[derive(Clone, Debug)]
struct Spot {
    site: u32,
    shape: u32,
    state: u32,
    /// Free thousandths of devices of each of its nodes.
    device_milli: u64,
    /// Number of the slots of each of its nodes, as long as costs are known.
    slots: u32,
    /// Numbers of its nodes, descending.
    nodes: SmallVec<[u32; 4]>,
    /// Place of its entry in the log, while it has nodes.
    entry: u32,
}

/// Nodes of all sites by state, with what is needed to choose among them. What a state is worth and what is scarce is a
/// matter of all sites: work that finds no place at one goes to another.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    shapes: Interner<Shape>,
    totals: Vec<ShapeTotal>,
    free_milli: Vec<u64>,
    slots: [i64; SORTS],
    states: States,
    sites: Vec<Site>,
    spots: Vec<Spot>,
    /// By site and state.
    spot_numbers: Index<(u32, u32), u32>,
    live: Live,
    /// How many nodes there are.
    nodes: usize,
    log: Log,
    mix: Mix,
    /// `None`: shapes or mix changed since costs were computed.
    costs: Option<Costs>,
    /// As lanes sort nodes; of these costs.
    fronts: Fronts,
    /// What there was of each shape when costs were computed.
    totals_then: Vec<ShapeTotal>,
    /// `None`: something changed since.
    prices: Option<Prices>,
    tasks: Interner<Task>,
    /// By number of the task.
    lanes: Vec<Option<Lane>>,
    /// Changes so far of what nodes there are and what is free on them.
    changes: u64,
}

impl Pool {
    /// Expects work like `mix` from now on.
    pub fn expect(&mut self, mix: Mix) {
        if self.mix != mix {
            self.mix = mix;
            self.costs = None;
        }
    }

    /// Adds `node` to `site`, or replaces what is known of it.
    pub fn set(&mut self, site: u32, node: u32, shape: &Shape, free: NodeState) {
        self.remove(site, node);
        let shape_number = self.shapes.intern_ref(shape);
        let at = shape_number as usize;
        if self.totals.len() <= at {
            self.totals.push(ShapeTotal::default());
            self.free_milli.push(0);
            self.costs = None;
        }
        self.totals[at].device_milli += shape.idle().device_milli();
        self.totals[at].cpu_milli += shape.cpu_milli;
        self.nodes += 1;
        let state = self.states.intern((shape_number, free));
        let spot = self.spot(site, state);
        self.join(site, node, spot);
    }

    /// Forgets `node` of `site`.
    pub fn remove(&mut self, site: u32, node: u32) {
        let Some(spot) = self.spot_of(site, node) else { return };
        self.sites[site as usize].nodes[node as usize] = NONE;
        self.count_out(node, spot);
        let shape = self.spots[spot as usize].shape;
        let idle = self.shapes.get(shape);
        let total = &mut self.totals[shape as usize];
        total.device_milli -= idle.idle().device_milli();
        total.cpu_milli -= idle.cpu_milli;
        self.nodes -= 1;
    }

    /// Forgets all nodes of `site`.
    pub fn clear(&mut self, site: u32) {
        let nodes = self.sites.get(site as usize).map_or(0, |site| site.nodes.len());
        for node in 0..u32::try_from(nodes).unwrap_or(u32::MAX) {
            self.remove(site, node);
        }
    }

    /// What is free on `node` of `site`.
    #[must_use]
    pub fn free(&self, site: u32, node: u32) -> Option<&NodeState> {
        let spot = self.spot_of(site, node)?;
        Some(&self.states.get(self.spots[spot as usize].state).1)
    }

    /// Says that `node` of `site` has `free` now.
    pub fn update(&mut self, site: u32, node: u32, free: NodeState) {
        let Some(before) = self.spot_of(site, node) else { return };
        let Spot { shape, state, .. } = self.spots[before as usize];
        let next = self.states.intern((shape, free));
        if next != state {
            let spot = self.spot(site, next);
            self.count_out(node, before);
            self.join(site, node, spot);
        }
    }

    /// Starts over with the states that some node is in: past ones, and what was computed for them, go.
    pub(crate) fn forget(&mut self) {
        let states = std::mem::take(&mut self.states);
        let spots = std::mem::take(&mut self.spots);
        self.spot_numbers.clear();
        self.live = Live::default();
        self.log = Log::default();
        self.free_milli.fill(0);
        self.costs = None;
        for spot in spots.into_iter().filter(|spot| !spot.nodes.is_empty()) {
            let state = self.states.intern(states.get(spot.state).clone());
            let number = self.spot(spot.site, state);
            for node in spot.nodes.into_iter().rev() {
                self.join(spot.site, node, number);
            }
        }
    }

    fn spot_of(&self, site: u32, node: u32) -> Option<u32> {
        let spot = self.sites.get(site as usize)?.nodes.get(node as usize);
        spot.copied().filter(|spot| *spot != NONE)
    }

    /// Number of the nodes of a site that are in a state.
    fn spot(&mut self, site: u32, state: u32) -> u32 {
        if let Some(spot) = self.spot_numbers.get((site, state)) {
            return spot;
        }
        let spot = u32::try_from(self.spots.len()).unwrap_or(NONE);
        let (shape, free) = self.states.get(state);
        let slots = self.costs.as_mut().map_or(0, |costs| costs.slots_of(*shape, free));
        let device_milli = free.device_milli();
        let shape = *shape;
        self.spots.push(Spot { site, shape, state, device_milli, slots, nodes: SmallVec::new(), entry: 0 });
        self.spot_numbers.insert((site, state), spot);
        spot
    }

    /// Counts in that `node` of `site` is in `spot`.
    fn join(&mut self, site: u32, node: u32, number: u32) {
        if self.sites.len() <= site as usize {
            self.sites.resize(site as usize + 1, Site::default());
        }
        let nodes = &mut self.sites[site as usize].nodes;
        if nodes.len() <= node as usize {
            nodes.resize(node as usize + 1, NONE);
        }
        nodes[node as usize] = number;
        self.changed();
        let spot = &mut self.spots[number as usize];
        let shape = spot.shape;
        self.free_milli[shape as usize] += spot.device_milli;
        if let Some(costs) = &self.costs {
            add_slots(&mut self.slots, costs.slots.get(spot.slots), 1);
        }
        if spot.nodes.is_empty() {
            let free = &self.states.get(spot.state).1;
            let digest = free.digest_with(self.shapes.digest(shape));
            spot.entry = self.log.push(Entry::new((number, spot.state), (site, shape), free, digest));
            self.live.set(number, true);
        }
        let at = spot.nodes.partition_point(|other| *other > node);
        spot.nodes.insert(at, node);
    }

    /// Counts out that `node` is in `spot`.
    fn count_out(&mut self, node: u32, number: u32) {
        self.changed();
        let spot = &mut self.spots[number as usize];
        let shape = spot.shape;
        self.free_milli[shape as usize] -= spot.device_milli;
        if let Some(costs) = &self.costs {
            add_slots(&mut self.slots, costs.slots.get(spot.slots), -1);
        }
        let at = spot.nodes.partition_point(|other| *other > node);
        spot.nodes.remove(at);
        if spot.nodes.is_empty() {
            self.log.end(spot.entry);
            self.live.set(number, false);
        }
    }

    fn changed(&mut self) {
        self.changes += 1;
        self.prices = None;
    }

    /// Computes what went stale, and forgets what is too much or long past.
    fn prepare(&mut self) {
        if self.tasks.len() > MAX_TASKS {
            self.tasks = Interner::default();
            self.costs = None;
        }
        if self.states.len().max(self.spots.len()) > MAX_STATES.max(4 * self.nodes) {
            self.forget();
        }
        if self.costs.as_ref().is_none_or(Costs::is_overgrown) || self.has_drifted() {
            self.compute_costs();
        }
        let spots = &mut self.spots;
        if let Some(ahead) = self.log.shorten(|spot, place| spots[spot as usize].entry = place) {
            self.lanes.iter_mut().flatten().for_each(|lane| lane.log_shortened(&ahead));
            self.forget_lanes();
        }
    }

    /// Whether there are so many more nodes of some shape than when costs were computed, or fewer, that they are others
    /// now.
    fn has_drifted(&self) -> bool {
        let far = |(now, then): (&ShapeTotal, &ShapeTotal)| {
            let apart = |now: u64, then: u64| now.abs_diff(then) > then / DRIFT;
            apart(now.device_milli, then.device_milli) || apart(now.cpu_milli, then.cpu_milli)
        };
        self.totals.len() != self.totals_then.len() || self.totals.iter().zip(&self.totals_then).any(far)
    }

    fn compute_costs(&mut self) {
        let mut costs = Costs::new(&self.mix, self.shapes.values(), &self.totals);
        self.slots = [0; SORTS];
        for spot in &mut self.spots {
            let (shape, free) = self.states.get(spot.state);
            spot.slots = costs.slots_of(*shape, free);
            add_slots(
                &mut self.slots,
                costs.slots.get(spot.slots),
                i64::try_from(spot.nodes.len()).unwrap_or(i64::MAX),
            );
        }
        self.fronts = Fronts::new(costs.scarcity.alike(self.shapes.len()));
        self.costs = Some(costs);
        self.totals_then.clone_from(&self.totals);
        self.prices = None;
        self.lanes.clear();
    }

    /// Forgets lanes that were not asked for the longest, if all together hold too much.
    fn forget_lanes(&mut self) {
        let held: usize = self.lanes.iter().flatten().map(Lane::held).sum();
        if held <= MAX_HELD {
            return;
        }
        let mut by_age: Vec<Option<u64>> = self.lanes.iter().flatten().map(|lane| lane.answers.after).collect();
        by_age.sort_unstable();
        let middle = by_age[by_age.len() / 2];
        let old = |lane: &Option<Lane>| lane.as_ref().is_some_and(|lane| lane.answers.after <= middle);
        self.lanes.iter_mut().filter(|lane| old(lane)).for_each(|lane| *lane = None);
    }
}

fn add_slots(total: &mut [i64; SORTS], slots: &Slots, times: i64) {
    for (total, slots) in total.iter_mut().zip(slots) {
        *total += times * i64::from(*slots);
    }
}

#[cfg(test)]
impl Pool {
    /// Shapes, what there is of each, and an empty table of states.
    pub(crate) fn parts(&mut self) -> (&mut Interner<Shape>, Vec<ShapeTotal>, States) {
        (&mut self.shapes, self.totals.clone(), States::default())
    }
}
