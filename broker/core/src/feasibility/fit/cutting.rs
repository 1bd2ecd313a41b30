//! Where to cut: devices and first slots for MIG instances that are made as leases need them.
//!
//! Age decides who is served, this decides where. Of all places, those come first after which the requests that wait
//! behind still fit, as many as fit with this one at all, the older before the younger; of these the one that loses
//! least [worth](StateValues) under the work that is expected; then one where such an instance exists, and devices in use
//! before idle ones. What it asks of those behind is a preference: policy, CPU and memory are theirs to meet when their
//! turn comes.

use std::collections::BTreeMap;

use comity_policy::compile_selector;
use litemap::LiteMap;

use crate::feasibility::fit::device::room;
use crate::feasibility::fit::mig_device::{Cut, cut, in_use};
use crate::feasibility::fit::{ResourceKind, Wanted, serves};
use crate::feasibility::obstacle::permitted;
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::demand::{DeviceChoice, RequestSpec};
use crate::model::id::{ClassName, ClusterId, NodeId};
use crate::model::inventory::{Device, Node};
use crate::model::limits::WHOLE_MILLI;
use crate::model::mig::{Board, InUse, InstanceCounts, MAX_SHAPES, Slots, StateValues, Weights, fit_together};
use crate::model::placement::{DeviceShare, NodePlacement};
use crate::model::work::WorkType;
use crate::state::occupancy::NodeOccupancy;

/// Requests that wait behind one and are kept a place for.
pub(crate) const MAX_LOOKAHEAD: usize = 32;
/// Instances that are kept a place for, and that one may ask for where places are kept: bounds the time of a choice.
const MAX_INSTANCES: u32 = 64;

/// What states of devices are worth under the work that is expected; kept from one plan to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct MigValues {
    expected: BTreeMap<WorkType, u64>,
    weights: BTreeMap<(ClassName, Board), Weights>,
    worth: StateValues,
}

impl MigValues {
    /// Expects other work from now on.
    pub(crate) fn expect(&mut self, expected: &BTreeMap<WorkType, u64>) {
        self.expected = expected.clone();
        self.weights.clear();
    }

    /// How often instances of each shape of `device`, which is of `class`, are asked for.
    fn weights(&mut self, class: &ClassName, device: &Device, board: Board) -> Weights {
        let key = (class.clone(), board);
        if let Some(weights) = self.weights.get(&key) {
            return *weights;
        }
        let mut counts = [0_u64; MAX_SHAPES];
        for (work, count) in &self.expected {
            if !chooses(&work.gpus.devices, class, device) {
                continue;
            }
            if let Some(asked) = cut(device, &work.gpus.share).and_then(|cut| counts.get_mut(cut.at)) {
                *asked = asked.saturating_add(count.saturating_mul(u64::from(work.gpus.count)));
            }
        }
        let weights = StateValues::weights(board, &counts);
        self.weights.insert(key, weights);
        weights
    }
}

/// Whether a device of `class` is one of those chosen.
fn chooses(devices: &DeviceChoice, class: &ClassName, device: &Device) -> bool {
    match devices {
        DeviceChoice::Class(wanted) => wanted == class,
        DeviceChoice::Selector(source) => {
            compile_selector(source).is_ok_and(|selector| selector.matches(&device.facts()))
        }
    }
}

/// Devices of one board at a donor, and what is still to fit on them.
#[derive(Clone)]
struct Together {
    /// States of devices; of many alike as many as could matter.
    states: Vec<InUse>,
    /// Instances of those that wait behind.
    lookahead: InstanceCounts,
    /// Number of the shape that is asked for, and how many more of them.
    own: usize,
    left: u32,
}

/// What cutting at some places costs; lower is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cost {
    /// Whether requests behind lose their place.
    crowds: bool,
    /// Worth lost.
    worth: u128,
    /// Instances that have to be made.
    made: u32,
    /// Idle devices broken into.
    broken: u32,
}

/// Shares laid on one node.
pub(crate) struct LaidOut {
    pub(crate) devices: LiteMap<u32, DeviceShare>,
    pub(crate) cost: Cost,
    /// Kubernetes resources that they count as.
    pub(crate) resources: u64,
    /// Thousandths of devices that are stranded beyond what is taken.
    pub(crate) waste_milli: i64,
}

/// A place for one share.
struct Place<'a> {
    index: u32,
    share: DeviceShare,
    resources: u32,
    cost: Cost,
    /// The instance, and what is in use of its device before it; where slots are known.
    slots: Option<(Cut<'a>, InUse)>,
}

/// Cuts at one donor, for one request.
pub(crate) struct Cutting<'c, 'v> {
    snapshot: &'c Snapshot<'v>,
    donor: &'c ClusterId,
    wanted: &'c Wanted<'c>,
    counted: &'c ResourceKind,
    mig_values: &'c mut MigValues,
    boards: BTreeMap<Board, Together>,
}

impl<'c, 'v> Cutting<'c, 'v> {
    /// `None` if no device of the donor that is wanted is cut as leases need it.
    pub(crate) fn begin(
        snapshot: &'c Snapshot<'v>,
        donor: &'c ClusterId,
        wanted: &'c Wanted<'c>,
        counted: &'c ResourceKind,
        mig_values: &'c mut MigValues,
    ) -> Option<Self> {
        let mut states: BTreeMap<Board, (&Device, BTreeMap<InUse, u32>)> = BTreeMap::new();
        for (id, node, classes) in snapshot.nodes(donor).filter(|(_, node, _)| node.schedulable) {
            let lent = snapshot.occupancy(donor, id);
            for (index, (device, class)) in (0_u32..).zip(node.devices.iter().zip(classes)) {
                if !serves(device, class.as_ref(), wanted, counted) {
                    continue;
                }
                let Some(cut) = cut(device, &wanted.gpus.share).filter(Cut::repartition) else { continue };
                let (_, states) = states.entry(cut.board).or_insert_with(|| (device, BTreeMap::new()));
                if let Some(in_use) = in_use(device, index, lent) {
                    *states.entry(in_use).or_default() += 1;
                }
            }
        }
        if states.is_empty() {
            return None;
        }
        let boards = states
            .into_iter()
            .map(|(board, (device, states))| (board, Together::of(snapshot, donor, wanted, (board, device), states)));
        let boards = boards.collect();
        Some(Self { snapshot, donor, wanted, counted, mig_values, boards })
    }

    /// Lays `units` shares on a node that has room for them.
    pub(crate) fn lay_out(&mut self, (id, node): (&NodeId, &Node), units: u32) -> LaidOut {
        let classes = self.snapshot.state.device_classes(self.donor, id);
        let mut lent = self.snapshot.occupancy(self.donor, id).cloned().unwrap_or_default();
        let mut laid = LaidOut { devices: LiteMap::new(), cost: Cost::default(), resources: 0, waste_milli: 0 };
        for _ in 0..units {
            let Some(place) = self.best(node, classes, &lent) else { break };
            if let Some((cut, before)) = place.slots.filter(|(cut, _)| cut.repartition())
                && let Some(together) = self.boards.get_mut(&cut.board)
            {
                let after =
                    InUse { slots: before.slots.with(place.share.slots), media: before.media || cut.shape.media };
                together.take(before, after);
                // What is lost beyond the instance itself.
                let parts =
                    u128::from(WHOLE_MILLI) * place.cost.worth / (u128::from(cut.board.slots()) * StateValues::SLOT);
                laid.waste_milli +=
                    i64::try_from(parts).unwrap_or(i64::MAX).saturating_sub(i64::from(place.share.milli));
            }
            laid.cost = laid.cost.and(place.cost);
            laid.resources += u64::from(place.resources);
            let share = laid.devices.entry(place.index).or_default();
            *share = DeviceShare {
                milli: share.milli + place.share.milli,
                units: share.units + 1,
                slots: share.slots.with(place.share.slots),
            };
            let devices = LiteMap::from_iter([(place.index, place.share)]);
            let taken = NodePlacement { devices, ..NodePlacement::default() };
            lent.take(&taken, self.counted.profile.as_deref());
        }
        laid
    }

    /// The best place for one share on a node; the first of those that are alike.
    fn best<'n>(&mut self, node: &'n Node, classes: &[Option<ClassName>], lent: &NodeOccupancy) -> Option<Place<'n>> {
        let share = &self.wanted.gpus.share;
        let mut best: Option<Place<'_>> = None;
        for (index, (device, class)) in (0_u32..).zip(node.devices.iter().zip(classes)) {
            if !serves(device, class.as_ref(), self.wanted, self.counted) {
                continue;
            }
            let Some(room) = room(device, index, Some(lent), share).filter(|room| room.units > 0) else { continue };
            let one = DeviceShare { milli: room.milli_each, units: 1, slots: Slots::NONE };
            let Some(cut) = cut(device, share) else {
                // Lent by number, and nothing else could be had there.
                return Some(Place {
                    index,
                    share: one,
                    resources: room.resources_each,
                    cost: Cost::default(),
                    slots: None,
                });
            };
            let before = in_use(device, index, Some(lent)).unwrap_or_default();
            for start in cut.starts(index, Some(lent)) {
                let cost = self.cost(device, (&cut, start), before);
                if best.as_ref().is_none_or(|best| cost < best.cost) {
                    let share = DeviceShare { slots: Slots::span(start, cut.shape.size), ..one };
                    let resources = room.resources_each;
                    best = Some(Place { index, share, resources, cost, slots: Some((cut, before)) });
                }
            }
        }
        best
    }

    /// As [`lay_out`](Self::lay_out), and as if it had not been done.
    pub(crate) fn try_out(&mut self, node: (&NodeId, &Node), units: u32) -> LaidOut {
        let before = self.boards.clone();
        let laid = self.lay_out(node, units);
        self.boards = before;
        laid
    }

    /// What tells a node from another as far as cutting goes: the states of its devices.
    pub(crate) fn signature(&self, (id, node): (&NodeId, &Node)) -> Vec<Option<(Board, InUse, bool)>> {
        let classes = self.snapshot.state.device_classes(self.donor, id);
        let lent = self.snapshot.occupancy(self.donor, id);
        let device = |(index, (device, class)): (u32, (&Device, &Option<ClassName>))| {
            let cut = serves(device, class.as_ref(), self.wanted, self.counted)
                .then(|| cut(device, &self.wanted.gpus.share))
                .flatten()?;
            Some((cut.board, in_use(device, index, lent)?, cut.repartition()))
        };
        let mut states: Vec<_> = (0_u32..).zip(node.devices.iter().zip(classes)).map(device).collect();
        states.sort_unstable();
        states
    }

    /// An instance that exists on a device that stays as it is costs nothing: it could serve no other shape.
    fn cost(&mut self, device: &Device, (cut, start): (&Cut<'_>, u8), before: InUse) -> Cost {
        if !cut.repartition() {
            return Cost::default();
        }
        let after = before.with(cut.shape, start);
        let weights = self.mig_values.weights(self.wanted.class, device, cut.board);
        let worth = |mig_values: &mut MigValues, state| mig_values.worth.of(cut.board, &weights, state);
        Cost {
            crowds: self.boards.get(&cut.board).is_some_and(|together| together.crowded(cut.board, before, after)),
            worth: worth(self.mig_values, before).saturating_sub(worth(self.mig_values, after)),
            made: u32::from(!cut.exists(start)),
            broken: u32::from(before == InUse::default()),
        }
    }
}

impl Cost {
    fn and(self, other: Self) -> Self {
        Self {
            crowds: self.crowds || other.crowds,
            worth: self.worth.saturating_add(other.worth),
            made: self.made + other.made,
            broken: self.broken + other.broken,
        }
    }
}

impl Together {
    /// Of those that wait behind, keeps a place for each that fits besides the request itself and all that are older.
    fn of(
        snapshot: &Snapshot<'_>,
        donor: &ClusterId,
        wanted: &Wanted<'_>,
        (board, device): (Board, &Device),
        states: BTreeMap<InUse, u32>,
    ) -> Self {
        let (own, left) = (cut(device, &wanted.gpus.share).map_or(MAX_SHAPES, |cut| cut.at), wanted.gpus.count);
        let (mut instances, mut behind) = (left, Vec::new());
        for spec in snapshot.lookahead.iter().filter(|spec| may_come(snapshot, donor, wanted.class, device, spec)) {
            let Some(cut) = cut(device, &spec.gpus.share) else { continue };
            instances = instances.saturating_add(spec.gpus.count);
            if instances > MAX_INSTANCES {
                break;
            }
            behind.push((cut.at, spec.gpus.count));
        }
        let most = usize::try_from(instances.min(2 * MAX_INSTANCES)).unwrap_or(usize::MAX);
        let alike = |(state, count): (InUse, u32)| {
            std::iter::repeat_n(state, most.min(usize::try_from(count).unwrap_or(usize::MAX)))
        };
        let states = states.into_iter().flat_map(alike).collect();
        let mut together = Self { states, lookahead: [0; MAX_SHAPES], own, left };
        if behind.is_empty() || !together.fits(board, left) {
            return together;
        }
        for (at, count) in behind {
            let before = together.lookahead;
            if let Some(asked) = together.lookahead.get_mut(at) {
                *asked += count;
            }
            if !together.fits(board, left) {
                together.lookahead = before;
            }
        }
        together
    }

    /// Whether `own` instances of the request and all that are kept a place for fit.
    fn fits(&self, board: Board, own: u32) -> bool {
        let mut asked = self.lookahead;
        if let Some(asked) = asked.get_mut(self.own) {
            *asked += own;
        }
        fit_together(board, &self.states, &asked)
    }

    /// One instance of the request was placed: `before` became `after`.
    fn take(&mut self, before: InUse, after: InUse) {
        self.left = self.left.saturating_sub(1);
        if let Some(state) = self.states.iter_mut().find(|state| **state == before) {
            *state = after;
        }
    }

    /// Whether the rest of the request and those behind do not all fit once `before` has become `after`.
    fn crowded(&self, board: Board, before: InUse, after: InUse) -> bool {
        if self.lookahead == [0; MAX_SHAPES] {
            return false;
        }
        let mut next = self.clone();
        next.take(before, after);
        !next.fits(board, next.left)
    }
}

/// Whether a request that waits could come to devices like this one, as far as it says itself and policy allows now.
fn may_come(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    class: &ClassName,
    device: &Device,
    spec: &RequestSpec,
) -> bool {
    let ask = PolicyQuery {
        tenant: spec.tenant.as_str(),
        origin: &spec.origin,
        class,
        milli: spec.least_milli(),
        delivery: spec.delivery,
        duration: spec.duration,
    };
    spec.origin != *donor
        && (spec.allow_donors.is_empty() || spec.allow_donors.contains(donor))
        && !spec.deny_donors.contains(donor)
        && chooses(&spec.gpus.devices, class, device)
        && permitted(snapshot.may_borrow(donor, ask)).is_ok()
}
