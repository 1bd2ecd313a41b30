//! Packing over each donor's nodes, kept from one plan to the next and brought up to date by differences.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_policy::{Bundle, compile_selector};

use super::cutting::Worths;
use super::device::room;
use super::fit::{Counted, Fit, Wanted, fit, free_cpu_and_memory};
use super::view::View;
use super::wired::is_of_a_whole_clique;
use crate::demand::{DeviceChoice, GpuDemand, Share, Topology};
use crate::id::{ClassName, ClusterId, NodeId};
use crate::inventory::{Device, Node, Sharing};
use crate::limits::WHOLE_MILLI;
use crate::mig::Slots;
use crate::occupancy::NodeOccupancy;
use crate::packing::{Mix, NodeState, Pool, Shape, Task};
use crate::placement::{DeviceShare, NodePlacement, Placement};
use crate::work::{WorkMix, WorkType};

/// The expected work is kept as parts of so many.
const PARTS: u64 = 1_024;
/// It is taken anew when it differs by so many parts: costs are computed anew with it.
const DRIFT: u64 = 64;

/// One part in so many of the work that is counted must be new before it is looked at again.
const PATIENCE: u64 = 64;
/// Kind of nodes without devices.
const NO_DEVICES: u32 = u32::MAX;

/// Packing for all donors.
#[derive(Clone, Debug, Default)]
pub(super) struct Packs {
    /// By whose classes the devices are sorted.
    bundle: Option<Arc<Bundle>>,
    /// Work that is expected besides the state's.
    known: WorkMix,
    expected: BTreeMap<WorkType, u64>,
    /// How many requests had been submitted when the state's work was last looked at.
    looked_at: Option<u64>,
    packs: BTreeMap<ClusterId, Pack>,
    /// What MIG devices are worth that are cut as leases need them.
    worths: Worths,
    /// Donors that were brought up to date in this plan.
    fresh: BTreeSet<ClusterId>,
}

/// One donor's nodes. Those with devices of several kinds, or with MIG instances, are left to [`fit`].
#[derive(Clone, Debug, Default)]
struct Pack {
    /// Of the offer.
    generation: u64,
    pool: Pool<NodeId>,
    shapes: BTreeMap<NodeId, Shape>,
    /// By number.
    kinds: Vec<Kind>,
    /// Changes of what is lent that are taken in.
    seen: u64,
    /// Nodes of which the last plan took something, which may not have come to be.
    taken: Vec<NodeId>,
    /// Classes of devices on nodes that are not in the pool.
    elsewhere: BTreeSet<ClassName>,
}

/// Devices that requests cannot tell apart.
#[derive(Clone, Debug)]
struct Kind {
    class: ClassName,
    /// An idle, healthy one.
    device: Device,
}

/// How a share is had of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Served {
    resource_name: String,
    milli_each: u16,
    resources_each: u32,
}

impl Packs {
    /// Expects `work` besides the state's.
    pub(super) fn expecting(work: WorkMix) -> Self {
        Self { known: work, ..Self::default() }
    }

    /// Begins a plan.
    pub(super) fn begin(&mut self, view: &View<'_>) {
        self.fresh.clear();
        let bundle = view.state.policy.as_ref().map(|record| &record.bundle);
        if !self.bundle.iter().zip(bundle).any(|(before, now)| Arc::ptr_eq(before, now)) {
            self.packs.clear();
            self.bundle = bundle.cloned();
        }
        self.packs.retain(|donor, _| view.state.clusters.get(donor).is_some_and(|cluster| cluster.offer.is_some()));
        self.expect(view);
    }

    /// Looks at what is asked for lately once enough was submitted to tell.
    fn expect(&mut self, view: &View<'_>) {
        let (submitted, counted) = (view.state.next_request, view.state.work().all().saturating_add(self.known.all()));
        let since = submitted.abs_diff(self.looked_at.unwrap_or(0));
        if self.looked_at.is_some() && since <= counted / PATIENCE {
            return;
        }
        self.looked_at = Some(submitted);
        let expected = parts(view.state.work(), &self.known);
        if difference(&self.expected, &expected) > DRIFT {
            self.expected = expected;
            self.worths.expect(&self.expected);
            for pack in self.packs.values_mut() {
                pack.expect(&self.expected);
            }
        }
    }

    /// Forgets all nodes, and what was expected of the state.
    pub(super) fn forget(&mut self) {
        *self = Self::expecting(std::mem::take(&mut self.known));
    }

    /// Finds room at `donor`: the place that leaves least idle in the end.
    pub(super) fn fit(&mut self, view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Fit {
        if self.pack(view, donor).is_none() {
            return Fit::Lacks { now: 0, ever: 0 };
        }
        let (worths, Some(pack)) = (&mut self.worths, self.packs.get_mut(donor)) else {
            return Fit::Lacks { now: 0, ever: 0 };
        };
        let serves = |kind: &Kind| {
            kind.class == *wanted.class && wanted.selector.is_none_or(|selector| selector.matches(&kind.device.facts()))
        };
        let alone = wanted.members.is_none();
        let Some(tasks) = alone.then(|| pack.tasks(wanted.gpus, wanted.topology, serves)).flatten() else {
            return fit(view, donor, wanted, worths);
        };
        let mut best: Option<(i64, Placement)> = None;
        for (task, served) in &tasks {
            let Some(choice) = pack.pool.choose(task) else { continue };
            if best.as_ref().is_none_or(|(waste, _)| choice.idle_milli() < *waste)
                && let Some(placement) = lay_out(view, donor, &choice.node, choice.level, (task, served), wanted.gpus)
            {
                best = Some((choice.idle_milli(), placement));
            }
        }
        match best {
            // Memory may be had in smaller pieces where packing does not look.
            Some((waste_milli, placement))
                if matches!(wanted.gpus.share, Share::MemoryMib(_)) && pack.elsewhere.contains(wanted.class) =>
            {
                Fit::Fits { placement, waste_milli }.or_smaller(fit(view, donor, wanted, worths))
            }
            Some((waste_milli, placement)) => Fit::Fits { placement, waste_milli },
            None if pack.is_all(wanted) => Fit::Lacks { now: 0, ever: 0 },
            None => fit(view, donor, wanted, worths),
        }
    }

    /// Finds room at `donor` by looking at each node as `view` has it.
    pub(super) fn look(&mut self, view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Fit {
        fit(view, donor, wanted, &mut self.worths)
    }

    /// The node of `donor` that work without GPUs leaves least idle on.
    pub(super) fn advise(
        &mut self,
        view: &View<'_>,
        donor: &ClusterId,
        cpu_milli: u64,
        memory_mib: u64,
    ) -> Option<NodeId> {
        let task = Task { cpu_milli, memory_mib, devices: 0, milli: 0, kinds: Vec::new() };
        Some(self.pack(view, donor)?.pool.choose(&task)?.node)
    }

    /// Brings a donor up to date as `view` has it, before something is counted in that another view has taken.
    pub(super) fn make_ready(&mut self, view: &View<'_>, donor: &ClusterId) {
        self.pack(view, donor);
    }

    /// Counts a placement in that `view` has taken.
    pub(super) fn take(&mut self, view: &View<'_>, placement: &Placement) {
        let Some(pack) = self.packs.get_mut(&placement.donor) else { return };
        for id in placement.nodes.keys() {
            pack.update(view, &placement.donor, id);
            pack.taken.push(id.clone());
        }
    }

    /// The pack of a donor that offers something, up to date.
    fn pack(&mut self, view: &View<'_>, donor: &ClusterId) -> Option<&mut Pack> {
        let generation = view.state.clusters.get(donor)?.offer.as_ref()?.generation;
        if !self.packs.contains_key(donor) {
            let mut pack = Pack::default();
            pack.expect(&self.expected);
            self.packs.insert(donor.clone(), pack);
        }
        let pack = self.packs.get_mut(donor)?;
        if self.fresh.insert(donor.clone()) {
            if pack.generation == generation {
                pack.catch_up(view, donor);
            } else {
                pack.take_offer(view, donor, generation);
                pack.expect(&self.expected);
            }
        }
        Some(pack)
    }
}

impl Pack {
    /// Takes a new offer in; costs stay known unless nodes came, went or became others.
    fn take_offer(&mut self, view: &View<'_>, donor: &ClusterId, generation: u64) {
        self.generation = generation;
        self.elsewhere.clear();
        self.taken.clear();
        let mut gone = std::mem::take(&mut self.shapes);
        for (id, node, classes) in view.nodes(donor) {
            let Some(kind) = self.kind_of(node, classes) else {
                self.elsewhere.extend(classes.iter().flatten().cloned());
                continue;
            };
            let devices = u16::try_from(node.devices.len()).unwrap_or(u16::MAX);
            let shape = Shape { cpu_milli: node.cpu_milli, memory_mib: node.memory_mib, devices, kind };
            let free = free(node, view.occupancy(donor, id));
            if gone.remove(id).as_ref() == Some(&shape) {
                self.pool.update(id, free);
            } else {
                self.pool.set(id.clone(), &shape, free);
            }
            self.shapes.insert(id.clone(), shape);
        }
        for id in gone.keys() {
            self.pool.remove(id);
        }
        self.seen = view.changes(donor).count();
    }

    /// Number of the kind that all devices of a node are of.
    fn kind_of(&mut self, node: &Node, classes: &[Option<ClassName>]) -> Option<u32> {
        let Some(first) = node.devices.first() else { return Some(NO_DEVICES) };
        let class = classes.first()?.as_ref()?;
        let alike = |(device, c): (&Device, &Option<ClassName>)| c.as_ref() == Some(class) && device.is_like(first);
        if matches!(first.sharing, Sharing::Mig { .. }) || !node.devices.iter().zip(classes).all(alike) {
            return None;
        }
        let known = self.kinds.iter().position(|kind| kind.class == *class && kind.device.is_like(first));
        let number = known.unwrap_or_else(|| {
            let device = Device { local_use_milli: 0, healthy: true, ..first.clone() };
            self.kinds.push(Kind { class: class.clone(), device });
            self.kinds.len() - 1
        });
        u32::try_from(number).ok()
    }

    /// Whether nothing but the pool could serve: then what does not fit there fits nowhere.
    fn is_all(&self, wanted: &Wanted<'_>) -> bool {
        (wanted.gpus.count == 1 || wanted.topology.same_node) && !self.elsewhere.contains(wanted.class)
    }

    /// Brings nodes up to date of which something was lent or given back.
    fn catch_up(&mut self, view: &View<'_>, donor: &ClusterId) {
        for id in std::mem::take(&mut self.taken) {
            self.update(view, donor, &id);
        }
        let changes = view.changes(donor);
        match changes.since(self.seen) {
            Some(recent) => {
                for id in recent {
                    self.update(view, donor, id);
                }
            }
            None => {
                for (id, _, _) in view.nodes(donor) {
                    self.update(view, donor, id);
                }
            }
        }
        self.seen = changes.count();
    }

    fn update(&mut self, view: &View<'_>, donor: &ClusterId, id: &NodeId) {
        let offer = view.state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref());
        let Some(node) = offer.and_then(|offer| offer.nodes.get(id)) else { return };
        let lent = view.occupancy(donor, id);
        self.pool.update(id, free(node, lent));
    }

    fn expect(&mut self, expected: &BTreeMap<WorkType, u64>) {
        let mut mix = Mix::default();
        for (work, weight) in expected {
            let selector = match &work.gpus.devices {
                DeviceChoice::Class(_) => None,
                DeviceChoice::Selector(source) => compile_selector(source).ok(),
            };
            let serves = |kind: &Kind| match &work.gpus.devices {
                DeviceChoice::Class(class) => kind.class == *class,
                DeviceChoice::Selector(_) => {
                    selector.as_ref().is_some_and(|selector| selector.matches(&kind.device.facts()))
                }
            };
            for (task, _) in self.tasks(&work.gpus, work.topology, serves).unwrap_or_default() {
                mix.add(task, *weight);
            }
        }
        self.pool.expect(mix);
    }

    /// What is asked for as tasks, one for each way in which kinds serve it; `None` if packing cannot say it.
    fn tasks(
        &self,
        gpus: &GpuDemand,
        topology: Topology,
        serves: impl Fn(&Kind) -> bool,
    ) -> Option<Vec<(Task, Served)>> {
        if topology.whole_node || topology.asks_for_wiring() || matches!(gpus.share, Share::MigProfile(_)) {
            return None;
        }
        let devices = u16::try_from(gpus.count).ok()?;
        let times = u64::from(gpus.count.max(1));
        let (cpu_milli, memory_mib) =
            (gpus.cpu_milli_per_gpu.saturating_mul(times), gpus.memory_mib_per_gpu.saturating_mul(times));
        if devices == 0 {
            let task = Task { cpu_milli, memory_mib, devices, milli: 0, kinds: Vec::new() };
            return Some(vec![(task, Served::default())]);
        }
        let mut ways: BTreeMap<Served, Vec<u32>> = BTreeMap::new();
        for (number, kind) in (0..).zip(&self.kinds) {
            if let Some(room) = serves(kind).then(|| room(&kind.device, 0, None, &gpus.share)).flatten() {
                let served = Served {
                    resource_name: Counted::of(&kind.device, &gpus.share).resource,
                    milli_each: u16::try_from(room.milli_each).ok()?,
                    resources_each: room.resources_each,
                };
                ways.entry(served).or_default().push(number);
            }
        }
        if devices > 1 && ways.keys().any(|served| u32::from(served.milli_each) < WHOLE_MILLI) {
            return None;
        }
        let task = |(served, kinds): (Served, Vec<u32>)| {
            (Task { cpu_milli, memory_mib, devices, milli: served.milli_each, kinds }, served)
        };
        Some(ways.into_iter().map(task).collect())
    }
}

/// Work of the state and known work together, as parts of [`PARTS`].
fn parts(lately: &WorkMix, known: &WorkMix) -> BTreeMap<WorkType, u64> {
    let mut counts: BTreeMap<&WorkType, u64> = BTreeMap::new();
    for (work, count) in lately.types().chain(known.types()) {
        let sum = counts.entry(work).or_default();
        *sum = sum.saturating_add(count);
    }
    let all: u128 = counts.values().map(|&count| u128::from(count)).sum();
    let part = |count: u64| u64::try_from(u128::from(count) * u128::from(PARTS) / all.max(1)).unwrap_or(PARTS).max(1);
    counts.into_iter().map(|(work, count)| (work.clone(), part(count))).collect()
}

/// Parts by which two mixes differ.
fn difference(one: &BTreeMap<WorkType, u64>, other: &BTreeMap<WorkType, u64>) -> u64 {
    let of = |mix: &BTreeMap<WorkType, u64>, work: &WorkType| mix.get(work).copied().unwrap_or(0);
    let both: BTreeSet<&WorkType> = one.keys().chain(other.keys()).collect();
    both.into_iter().map(|work| of(one, work).abs_diff(of(other, work))).sum()
}

/// What is free on a node.
fn free(node: &Node, lent: Option<&NodeOccupancy>) -> NodeState {
    if !node.schedulable {
        return NodeState { cpu_milli: 0, memory_mib: 0, devices: Vec::new() };
    }
    let (cpu_milli, memory_mib) = free_cpu_and_memory(node, lent, true);
    let all = (0..).zip(&node.devices).map(|(index, device)| free_of(device, index, lent));
    let mut devices: Vec<u16> = all.filter(|&milli| milli > 0).collect();
    devices.sort_unstable();
    NodeState { cpu_milli, memory_mib, devices }
}

/// Thousandths of a device that may be given out.
fn free_of(device: &Device, index: u32, lent: Option<&NodeOccupancy>) -> u16 {
    let lent = lent.and_then(|node| node.devices.get(&index)).copied().unwrap_or(0);
    let free = WHOLE_MILLI.saturating_sub(device.local_use_milli).saturating_sub(lent);
    let usable = device.healthy && (free == WHOLE_MILLI || device.sharing != Sharing::Exclusive);
    if usable { u16::try_from(free).unwrap_or(u16::MAX) } else { 0 }
}

/// The placement of a task on a node: a share on the first device with `level` free, several on the first that are whole.
fn lay_out(
    view: &View<'_>,
    donor: &ClusterId,
    id: &NodeId,
    level: u16,
    (task, served): (&Task, &Served),
    gpus: &GpuDemand,
) -> Option<Placement> {
    let offer = view.state.clusters.get(donor)?.offer.as_ref()?;
    let (node, lent) = (offer.nodes.get(id)?, view.occupancy(donor, id));
    let level = if task.devices > 1 { task.milli } else { level };
    let share = DeviceShare { milli: u32::from(served.milli_each), units: 1, slots: Slots::NONE };
    let mut free: Vec<(u32, &Device)> =
        (0..).zip(&node.devices).filter(|(index, device)| free_of(device, *index, lent) == level).collect();
    free.sort_by_key(|(index, device)| (is_of_a_whole_clique(node, lent, device), *index));
    let devices: BTreeMap<u32, DeviceShare> =
        free.into_iter().take(usize::from(task.devices)).map(|(index, _)| (index, share)).collect();
    if devices.len() != usize::from(task.devices) {
        return None;
    }
    let part =
        NodePlacement { devices, cpu_milli: task.cpu_milli, memory_mib: task.memory_mib, ..NodePlacement::default() };
    Some(Placement {
        donor: donor.clone(),
        nodes: BTreeMap::from([(id.clone(), part)]),
        offer_generation: offer.generation,
        resource_name: served.resource_name.clone(),
        resource_count: u64::from(gpus.count) * u64::from(served.resources_each),
        profile: None,
    })
}
