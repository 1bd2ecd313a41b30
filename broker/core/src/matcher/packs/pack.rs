//! One donor's nodes, brought up to date by what changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_policy::compile_selector;

use super::super::device::room;
use super::super::fit::{Counted, Wanted};
use super::super::view::View;
use super::expected::Expected;
use super::lay_out::free;
use crate::demand::{DeviceChoice, GpuDemand, Share, Topology};
use crate::id::{ClassName, ClusterId, NodeId};
use crate::inventory::{Device, Node, Sharing};
use crate::limits::WHOLE_MILLI;
use crate::packing::{Mix, Pool, Shape, Task};

/// Demands of which it is remembered what they are as tasks.
const MAX_ANSWERS: usize = 4_096;
/// Kind of nodes without devices.
const NO_DEVICES: u32 = u32::MAX;

/// One donor's nodes. Those with devices of several kinds, or with MIG instances, are left to [`fit`].
#[derive(Clone, Debug, Default)]
pub(super) struct Pack {
    /// Of the offer.
    generation: Option<u64>,
    /// Number of the plan for which it was brought up to date last; 0: none.
    pub(super) caught_up: u64,
    pub(super) pool: Pool<NodeId>,
    shapes: BTreeMap<NodeId, Shape>,
    /// By number.
    kinds: Vec<Kind>,
    /// Changes of what is lent that are taken in.
    seen: u64,
    /// Nodes of which the last plan took something, which may not have come to be.
    taken: BTreeSet<NodeId>,
    /// Classes of devices on nodes that are not in the pool, by node.
    elsewhere: BTreeMap<NodeId, BTreeSet<ClassName>>,
    /// What demands are as tasks, as long as there are the same kinds.
    answers: BTreeMap<GpuDemand, Vec<Answer>>,
}

/// What a demand is as tasks, for devices of one class.
#[derive(Clone, Debug)]
struct Answer {
    topology: Topology,
    class: ClassName,
    tasks: Option<Arc<[(Task, Served)]>>,
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
pub(super) struct Served {
    pub(super) resource_name: String,
    pub(super) milli_each: u16,
    pub(super) resources_each: u32,
}

impl Served {
    /// Thousandths of a device that a share takes above what was asked for, where that is said in thousandths.
    pub(super) fn above_milli(&self, share: &Share) -> i64 {
        match share {
            Share::Milli(milli) => i64::from(u32::from(self.milli_each).saturating_sub(*milli)),
            Share::Whole | Share::MemoryMib(_) | Share::MigProfile(_) => 0,
        }
    }
}

impl Pack {
    /// A pack that knows no node yet.
    pub(super) fn expecting(expected: &Expected) -> Self {
        let mut pack = Self::default();
        pack.expect(expected);
        pack
    }

    /// Brings nodes up to date that changed since the last time: those of which something was lent or given back, or that
    /// the donor offers otherwise.
    pub(super) fn catch_up(&mut self, view: &View<'_>, donor: &ClusterId, expected: &Expected) {
        let Some(offer) = view.state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref()) else { return };
        let changes = view.changes(donor);
        let kinds = self.kinds.len();
        let before = self.generation.replace(offer.generation);
        let recent = before.and_then(|before| Some((before, changes.since(self.seen)?)));
        let mut changed = std::mem::take(&mut self.taken);
        match recent {
            Some((before, recent)) => {
                changed.extend(recent.cloned());
                for id in &changed {
                    if before == offer.generation {
                        self.update(view, donor, id);
                    } else {
                        self.take_node(view, donor, id);
                    }
                }
            }
            None => {
                let gone = self.shapes.keys().chain(self.elsewhere.keys()).filter(|id| !offer.nodes.contains_key(*id));
                for id in gone.chain(offer.nodes.keys()).cloned().collect::<Vec<NodeId>>() {
                    self.take_node(view, donor, &id);
                }
            }
        }
        self.seen = changes.count();
        if self.kinds.len() != kinds {
            self.expect(expected);
        }
    }

    /// Takes a node as the offer has it now; costs stay known unless it came, went or became another.
    fn take_node(&mut self, view: &View<'_>, donor: &ClusterId, id: &NodeId) {
        self.elsewhere.remove(id);
        let node = view.node(donor, id);
        let classes = view.state.device_classes(donor, id);
        let Some((node, kind)) = node.and_then(|node| Some((node, self.kind_of(node, classes)?))) else {
            if self.shapes.remove(id).is_some() {
                self.pool.remove(id);
            }
            if node.is_some() {
                self.elsewhere.insert(id.clone(), classes.iter().flatten().cloned().collect());
            }
            return;
        };
        let devices = u16::try_from(node.devices.len()).unwrap_or(u16::MAX);
        let shape = Shape { cpu_milli: node.cpu_milli, memory_mib: node.memory_mib, devices, kind };
        let free = free(node, view.occupancy(donor, id));
        if self.shapes.get(id) == Some(&shape) {
            self.pool.update(id, free);
        } else {
            self.pool.set(id.clone(), &shape, free);
            self.shapes.insert(id.clone(), shape);
        }
    }

    /// Counts in what `view` has taken of a node.
    pub(super) fn take(&mut self, view: &View<'_>, donor: &ClusterId, id: &NodeId) {
        self.update(view, donor, id);
        self.taken.insert(id.clone());
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
            let device = Device { local_use_milli: 0, healthy: true, fault: None, ..first.clone() };
            self.kinds.push(Kind { class: class.clone(), device });
            self.answers.clear();
            self.kinds.len() - 1
        });
        u32::try_from(number).ok()
    }

    /// Whether nothing but the pool could serve: then what does not fit there fits nowhere.
    pub(super) fn is_all(&self, wanted: &Wanted<'_>) -> bool {
        (wanted.gpus.count == 1 || wanted.topology.same_node) && !self.is_elsewhere(wanted.class)
    }

    /// Whether nodes that are not in the pool have devices of `class`.
    pub(super) fn is_elsewhere(&self, class: &ClassName) -> bool {
        self.elsewhere.values().any(|classes| classes.contains(class))
    }

    fn update(&mut self, view: &View<'_>, donor: &ClusterId, id: &NodeId) {
        let Some(node) = view.node(donor, id) else { return };
        let lent = view.occupancy(donor, id);
        self.pool.update(id, free(node, lent));
    }

    /// Expects such work from now on.
    pub(super) fn expect(&mut self, expected: &Expected) {
        let mut mix = Mix::known_from(expected.tasks);
        for (work, weight) in &expected.parts {
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

    /// What is wanted as tasks, one for each way in which kinds serve it; `None` if packing cannot say it. The answer is
    /// remembered: a selector is asked about each kind once.
    pub(super) fn tasks_of(&mut self, wanted: &Wanted<'_>) -> Option<Arc<[(Task, Served)]>> {
        let known = self.answers.get(wanted.gpus).into_iter().flatten();
        let mut same = known.filter(|answer| answer.topology == wanted.topology && answer.class == *wanted.class);
        if let Some(answer) = same.next() {
            return answer.tasks.clone();
        }
        let serves = |kind: &Kind| {
            kind.class == *wanted.class && wanted.selector.is_none_or(|selector| selector.matches(&kind.device.facts()))
        };
        let tasks = self.tasks(wanted.gpus, wanted.topology, serves).map(Arc::from);
        if self.answers.len() >= MAX_ANSWERS {
            self.answers.clear();
        }
        let answer = Answer { topology: wanted.topology, class: wanted.class.clone(), tasks: tasks.clone() };
        self.answers.entry(wanted.gpus.clone()).or_default().push(answer);
        tasks
    }

    /// What is asked for as tasks.
    fn tasks(
        &self,
        gpus: &GpuDemand,
        topology: Topology,
        serves: impl Fn(&Kind) -> bool,
    ) -> Option<Vec<(Task, Served)>> {
        if topology.whole_node || topology.asks_for_wiring() || matches!(gpus.share, Share::MigProfile(_)) {
            return None;
        }
        if topology.spread_nodes && gpus.count > 1 {
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
