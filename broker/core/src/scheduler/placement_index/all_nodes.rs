//! All donors' nodes together, and what demands are on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_policy::compile_selector;

use crate::feasibility::fit::device::room;
use crate::feasibility::fit::{ResourceKind, Wanted};
use crate::model::demand::{DeviceChoice, GpuDemand, Share, Topology};
use crate::model::id::ClassName;
use crate::model::inventory::{Device, Node, Sharing};
use crate::model::limits::WHOLE_MILLI;
use crate::scheduler::packing::{Mix, StateIndex, Task};
use crate::scheduler::placement_index::expected::Expected;

/// Demands of which it is remembered what they are as tasks.
const MAX_ANSWERS: usize = 4_096;
/// Kinds of device that are remembered, past ones among them.
const MAX_KINDS: usize = 4_096;
/// Up to so many kinds each is expected to be asked for by name: of more, that would be much of all work.
const NAMED_KINDS: usize = 32;
/// A part of the expected work weighs as much as so many kinds that nobody asked for by name.
const PART: u64 = 4;
/// Kind of nodes without devices.
const NO_DEVICES: u32 = u32::MAX;

/// All donors' nodes that packing looks at, each donor as a site of one pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllNodes {
    pub(crate) states: StateIndex,
    /// By number.
    kinds: Vec<Kind>,
    /// Kinds that there were when the pool was told last what to expect.
    expected_on: usize,
    /// What demands are as tasks, as long as there are the same kinds.
    answers: BTreeMap<GpuDemand, Vec<Answer>>,
    /// The one that was given last: one decision asks again and again, and so do those that want the same.
    last: Option<(GpuDemand, Answer)>,
    /// Sites that were given out, and those of them that came back.
    donors: u32,
    left: Vec<u32>,
}

/// What a demand is as tasks, for devices of one class.
#[derive(Clone, Debug)]
struct Answer {
    topology: Topology,
    class: ClassName,
    tasks: Option<Tasks>,
}

/// What is wanted as tasks, one for each way in which kinds serve it.
pub(crate) type Tasks = Arc<[(Task, Served)]>;

/// Devices that requests cannot tell apart.
#[derive(Clone, Debug)]
struct Kind {
    class: ClassName,
    /// An idle, healthy one.
    device: Device,
}

/// How a share is had of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Served {
    pub(crate) resource_name: String,
    pub(crate) milli_each: u16,
    pub(crate) resources_each: u32,
}

impl Served {
    /// Thousandths of a device that a share takes above what was asked for, where that is said in thousandths.
    pub(crate) fn above_milli(&self, share: &Share) -> i64 {
        match share {
            Share::Milli(milli) => i64::from(u32::from(self.milli_each).saturating_sub(*milli)),
            Share::Whole | Share::MemoryMib(_) | Share::MigProfile(_) => 0,
        }
    }
}

impl AllNodes {
    /// A site for one donor more.
    pub(crate) fn add_donor(&mut self) -> u32 {
        self.left.pop().unwrap_or_else(|| {
            self.donors += 1;
            self.donors - 1
        })
    }

    /// The donor of a site is gone.
    pub(crate) fn remove_donor(&mut self, number: u32) {
        self.states.clear(number);
        self.left.push(number);
    }

    /// Whether more is remembered of past devices than is worth it.
    pub(crate) fn is_overgrown(&self) -> bool {
        self.kinds.len() > MAX_KINDS
    }

    /// Number of the kind that all devices of a node are of.
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
            self.answers.clear();
            self.last = None;
            self.kinds.len() - 1
        });
        u32::try_from(number).ok()
    }

    /// Expects the same on kinds that came since.
    pub(crate) fn settle(&mut self, expected: &Expected) {
        if self.expected_on != self.kinds.len() {
            self.expect(expected);
        }
    }

    /// Expects such work from now on.
    pub(crate) fn expect(&mut self, expected: &Expected) {
        self.expected_on = self.kinds.len();
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
                mix.add(task, *weight * PART);
            }
        }
        // A kind that nobody asked for by name yet may be asked for, more rarely than anything that was (as Laplace's
        // rule of succession has it): so where several would do, the last devices of a kind do not go first.
        let named = if (2..=NAMED_KINDS).contains(&self.kinds.len()) { 0..self.kinds.len() } else { 0..0 };
        for kind in named.filter_map(|kind| u32::try_from(kind).ok()) {
            let whole = u16::try_from(WHOLE_MILLI).unwrap_or(u16::MAX);
            mix.add(Task { cpu_milli: 0, memory_mib: 0, devices: 1, milli: whole, kinds: vec![kind] }, 1);
        }
        self.states.expect(mix);
    }

    /// What is wanted as tasks; `None` if packing cannot say it. The answer is remembered: a selector is asked about
    /// each kind once.
    pub(crate) fn tasks_of(&mut self, wanted: &Wanted<'_>) -> Option<Tasks> {
        let same = |answer: &&Answer| answer.topology == wanted.topology && answer.class == *wanted.class;
        if let Some((_, last)) = self.last.as_ref().filter(|(gpus, last)| same(&last) && gpus == wanted.gpus) {
            return last.tasks.clone();
        }
        if let Some(answer) = self.answers.get(wanted.gpus).into_iter().flatten().find(same) {
            self.last = Some((wanted.gpus.clone(), answer.clone()));
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
                    resource_name: ResourceKind::of(&kind.device, &gpus.share).resource,
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
