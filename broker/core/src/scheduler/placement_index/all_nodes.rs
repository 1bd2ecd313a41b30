//! The node states of all donors, and the translation of demands into packing tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_policy::compile_selector;
use comity_types::ClassName;

use crate::feasibility::fit::device::room;
use crate::feasibility::fit::{ResourceKind, Wanted, is_of_type};
use crate::model::demand::{DeviceChoice, GpuDemand, Share, Topology};
use crate::model::inventory::{Device, Node, Sharing};
use crate::model::limits::WHOLE_MILLI;
use crate::scheduler::packing::{Mix, StateIndex, Task};
use crate::scheduler::placement_index::expected::Expected;

/// Cached translations of demands.
const MAX_TRANSLATIONS: usize = 4_096;
/// Interned device kinds, including unused ones.
const MAX_KINDS: usize = 4_096;
/// With up to this many kinds, each is expected to be requested by name. With more, these guesses would outweigh
/// observed work.
const MAX_NAMED_KINDS: usize = 32;
/// Weight of one part of expected work, relative to one kind that nobody has requested by name.
const PART_WEIGHT: u64 = 4;
/// Kind of nodes without devices.
const NO_DEVICES: u32 = u32::MAX;

/// The nodes of all donors that the placement index holds, in one state index.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllNodes {
    pub(crate) states: StateIndex,
    /// By kind number.
    kinds: Vec<Kind>,
    /// Number of kinds when expected work was last set.
    kinds_at_last_update: usize,
    /// Cached translations of demands; cleared when a kind is added.
    translations: BTreeMap<GpuDemand, Vec<Translation>>,
    /// The latest translation: one decision repeats the query, and so do equal requests.
    last_translation: Option<(GpuDemand, Translation)>,
    /// Number of donor numbers ever assigned.
    donors: u32,
    free_numbers: Vec<u32>,
}

/// A demand as tasks on devices of one class; `None` if packing cannot express it.
#[derive(Clone, Debug)]
struct Translation {
    topology: Topology,
    class: ClassName,
    tasks: Option<Tasks>,
}

/// A demand as tasks, one for each distinct way in which device kinds satisfy its share.
pub(crate) type Tasks = Arc<[ServedTask]>;

/// A task, and what its share becomes on the task's device kinds.
#[derive(Clone, Debug)]
pub(crate) struct ServedTask {
    pub(crate) task: Task,
    pub(crate) share: ServedShare,
}

/// Devices that no request can tell apart.
#[derive(Clone, Debug)]
struct Kind {
    class: ClassName,
    /// An idle, healthy example.
    device: Device,
}

/// How a device kind satisfies a share.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServedShare {
    pub(crate) resource_name: String,
    pub(crate) milli_each: u16,
    pub(crate) resources_each: u32,
}

impl ServedShare {
    /// Thousandths of a device beyond the request, for shares requested in thousandths.
    pub(crate) fn excess_milli(&self, share: &Share) -> i64 {
        match share {
            Share::Milli(milli) => i64::from(u32::from(self.milli_each).saturating_sub(*milli)),
            Share::Whole | Share::MemoryMib(_) | Share::MigProfile(_) => 0,
        }
    }
}

impl AllNodes {
    /// Assigns a number to a new donor.
    pub(crate) fn add_donor(&mut self) -> u32 {
        self.free_numbers.pop().unwrap_or_else(|| {
            self.donors += 1;
            self.donors - 1
        })
    }

    /// Drops a donor's nodes and frees its number.
    pub(crate) fn remove_donor(&mut self, number: u32) {
        self.states.clear(number);
        self.free_numbers.push(number);
    }

    /// Whether the table of kinds should be rebuilt.
    pub(crate) fn is_overgrown(&self) -> bool {
        self.kinds.len() > MAX_KINDS
    }

    /// The kind of all devices of a node; `None` if they differ or packing cannot handle them.
    pub(crate) fn kind_of(&mut self, node: &Node, classes: &[Option<ClassName>]) -> Option<u32> {
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
            self.translations.clear();
            self.last_translation = None;
            self.kinds.len() - 1
        });
        u32::try_from(number).ok()
    }

    /// Re-applies expected work after kinds were added.
    pub(crate) fn refresh_kinds(&mut self, expected: &Expected) {
        if self.kinds_at_last_update != self.kinds.len() {
            self.expect(expected);
        }
    }

    /// Sets the expected work.
    pub(crate) fn expect(&mut self, expected: &Expected) {
        self.kinds_at_last_update = self.kinds.len();
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
            for served in self.translate_demand(&work.gpus, work.topology, serves).unwrap_or_default() {
                mix.add(served.task, *weight * PART_WEIGHT);
            }
        }
        // Any kind may yet be requested by name, though less often than observed work (Laplace's rule of succession).
        // This keeps the last devices of a kind from going first where several kinds would do.
        let named = if (2..=MAX_NAMED_KINDS).contains(&self.kinds.len()) { 0..self.kinds.len() } else { 0..0 };
        for kind in named.filter_map(|kind| u32::try_from(kind).ok()) {
            let whole = u16::try_from(WHOLE_MILLI).unwrap_or(u16::MAX);
            mix.add(Task { cpu_milli: 0, memory_mib: 0, devices: 1, milli: whole, kinds: vec![kind] }, 1);
        }
        self.states.expect(mix);
    }

    /// The demand as tasks; `None` if packing cannot express it. Cached, so that a selector runs once per kind.
    pub(crate) fn translate(&mut self, wanted: &Wanted<'_>) -> Option<Tasks> {
        let same = |answer: &&Translation| answer.topology == wanted.topology && answer.class == *wanted.class;
        if let Some((_, last)) =
            self.last_translation.as_ref().filter(|(gpus, last)| same(&last) && gpus == wanted.gpus)
        {
            return last.tasks.clone();
        }
        if let Some(answer) = self.translations.get(wanted.gpus).into_iter().flatten().find(same) {
            self.last_translation = Some((wanted.gpus.clone(), answer.clone()));
            return answer.tasks.clone();
        }
        let serves = |kind: &Kind| {
            kind.class == *wanted.class && wanted.selector.is_none_or(|selector| selector.matches(&kind.device.facts()))
        };
        let tasks = self.translate_demand(wanted.gpus, wanted.topology, serves).map(Arc::from);
        if self.translations.len() >= MAX_TRANSLATIONS {
            self.translations.clear();
        }
        let answer = Translation { topology: wanted.topology, class: wanted.class.clone(), tasks: tasks.clone() };
        self.translations.entry(wanted.gpus.clone()).or_default().push(answer);
        tasks
    }

    fn translate_demand(
        &self,
        gpus: &GpuDemand,
        topology: Topology,
        serves: impl Fn(&Kind) -> bool,
    ) -> Option<Vec<ServedTask>> {
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
            return Some(vec![ServedTask { task, share: ServedShare::default() }]);
        }
        let mut by_share: BTreeMap<ServedShare, Vec<u32>> = BTreeMap::new();
        for (number, kind) in (0..).zip(&self.kinds) {
            let resource_kind = ResourceKind::of(&kind.device, &gpus.share);
            let is_of_type = gpus.gpu_type.as_ref().is_none_or(|it| is_of_type(&kind.device, &resource_kind, it));
            let serves = is_of_type && kind.device.sharing.isolation() >= gpus.isolation && serves(kind);
            if let Some(room) = serves.then(|| room(&kind.device, 0, None, &gpus.share)).flatten() {
                let share = ServedShare {
                    resource_name: resource_kind.resource,
                    milli_each: u16::try_from(room.milli_each).ok()?,
                    resources_each: room.resources_each,
                };
                by_share.entry(share).or_default().push(number);
            }
        }
        if devices > 1 && by_share.keys().any(|share| u32::from(share.milli_each) < WHOLE_MILLI) {
            return None;
        }
        let served = |(share, kinds): (ServedShare, Vec<u32>)| ServedTask {
            task: Task { cpu_milli, memory_mib, devices, milli: share.milli_each, kinds },
            share,
        };
        Some(by_share.into_iter().map(served).collect())
    }
}
