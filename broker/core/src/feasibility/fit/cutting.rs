//! Chooses where to cut MIG devices on demand: the device and the first slot of each instance.
//!
//! Age decides who is served; this decides where. The best place lets the most requests behind still fit, older ones
//! first. Among such places, it loses the least [value](StateValues) under expected work; then it reuses an existing
//! instance, and prefers devices in use to idle ones. Room for requests behind is only a preference: they must satisfy
//! policy, CPU and memory in their own turn.

use std::collections::BTreeMap;

use comity_policy::compile_selector;
use comity_types::{ClassName, ClusterId, NodeId};
use litemap::LiteMap;

use crate::feasibility::fit::device::room;
use crate::feasibility::fit::mig_device::{Cut, cut, in_use};
use crate::feasibility::fit::{ResourceKind, Wanted, serves};
use crate::feasibility::obstacle::permitted;
use crate::feasibility::snapshot::{PolicyQuery, Snapshot};
use crate::model::demand::{DeviceChoice, RequestSpec};
use crate::model::inventory::{Device, Node};
use crate::model::limits::WHOLE_MILLI;
use crate::model::mig::{Board, InUse, InstanceCounts, MAX_SHAPES, Slots, StateValues, Weights, fit_together};
use crate::model::placement::{DeviceShare, NodePlacement};
use crate::model::work::WorkType;
use crate::state::occupancy::NodeOccupancy;

/// Requests behind the current one for which cutting leaves room.
pub(crate) const MAX_LOOKAHEAD: usize = 32;
/// Instances for which cutting leaves room, including the current request's: bounds the time of a choice.
const MAX_LOOKAHEAD_INSTANCES: u32 = 64;

/// Values of device states under expected work; kept from plan to plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct MigValues {
    expected: BTreeMap<WorkType, u64>,
    weights: BTreeMap<(ClassName, Board), Weights>,
    values: StateValues,
}

impl MigValues {
    /// Sets the expected work.
    pub(crate) fn expect(&mut self, expected: &BTreeMap<WorkType, u64>) {
        self.expected = expected.clone();
        self.weights.clear();
    }

    /// The expected demand for each instance shape on `device` of `class`.
    fn weights(&mut self, class: &ClassName, device: &Device, board: Board) -> Weights {
        let key = (class.clone(), board);
        if let Some(weights) = self.weights.get(&key) {
            return *weights;
        }
        let mut counts = [0_u64; MAX_SHAPES];
        for (work, count) in &self.expected {
            if !matches_choice(&work.gpus.devices, class, device) {
                continue;
            }
            if let Some(asked) = cut(device, &work.gpus.share).and_then(|cut| counts.get_mut(cut.shape_index)) {
                *asked = asked.saturating_add(count.saturating_mul(u64::from(work.gpus.count)));
            }
        }
        let weights = StateValues::weights(board, &counts);
        self.weights.insert(key, weights);
        weights
    }
}

/// Whether the choice admits a device of `class`.
fn matches_choice(devices: &DeviceChoice, class: &ClassName, device: &Device) -> bool {
    match devices {
        DeviceChoice::Class(wanted) => wanted == class,
        DeviceChoice::Selector(source) => {
            compile_selector(source).is_ok_and(|selector| selector.matches(&device.facts()))
        }
    }
}

/// A donor's devices of one board, and the demand still to fit on them.
#[derive(Clone)]
struct BoardDemand {
    /// Device states; of equal ones only as many as can matter.
    states: Vec<InUse>,
    /// Instances reserved for requests behind, by shape.
    lookahead: InstanceCounts,
    /// Shape index of the current request.
    own_shape: usize,
    /// Instances of the current request still to be placed.
    left: u32,
}

/// The cost of cutting, compared field by field; lower is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CutCost {
    /// Whether requests behind lose their room.
    crowds: bool,
    /// Loss of state value.
    lost_value: u128,
    /// Instances to be created.
    made: u32,
    /// Idle devices put into use.
    broken: u32,
}

/// Shares laid on one node.
pub(crate) struct CutLayout {
    pub(crate) devices: LiteMap<u32, DeviceShare>,
    pub(crate) cost: CutCost,
    /// Number of Kubernetes resources.
    pub(crate) resources: u64,
    /// Thousandths of devices stranded beyond the shares themselves.
    pub(crate) waste_milli: i64,
}

/// A place for one share.
struct CutPlace<'a> {
    index: u32,
    share: DeviceShare,
    resources: u32,
    cost: CutCost,
    /// The instance and the prior usage of its device, where slots are known.
    slots: Option<(Cut<'a>, InUse)>,
}

/// Chooses cuts at one donor for one request.
pub(crate) struct Cutting<'c, 'v> {
    snapshot: &'c Snapshot<'v>,
    donor: &'c ClusterId,
    wanted: &'c Wanted<'c>,
    counted: &'c ResourceKind,
    mig_values: &'c mut MigValues,
    boards: BTreeMap<Board, BoardDemand>,
}

impl<'c, 'v> Cutting<'c, 'v> {
    /// `None` if none of the donor's suitable devices may be re-cut.
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
                let Some(cut) = cut(device, &wanted.gpus.share).filter(Cut::may_recut) else { continue };
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
            .map(|(board, (device, states))| (board, BoardDemand::of(snapshot, donor, wanted, board, device, states)));
        let boards = boards.collect();
        Some(Self { snapshot, donor, wanted, counted, mig_values, boards })
    }

    /// Lays `units` shares on a node with room for them.
    pub(crate) fn lay_out(&mut self, id: &NodeId, node: &Node, units: u32) -> CutLayout {
        let classes = self.snapshot.state.device_classes(self.donor, id);
        let mut lent = self.snapshot.occupancy(self.donor, id).cloned().unwrap_or_default();
        let mut laid = CutLayout { devices: LiteMap::new(), cost: CutCost::default(), resources: 0, waste_milli: 0 };
        for _ in 0..units {
            let Some(place) = self.best_place(node, classes, &lent) else { break };
            if let Some((cut, before)) = place.slots.filter(|(cut, _)| cut.may_recut())
                && let Some(together) = self.boards.get_mut(&cut.board)
            {
                let after =
                    InUse { slots: before.slots.with(place.share.slots), media: before.media || cut.shape.media };
                together.take(before, after);
                // The loss beyond the instance itself.
                let parts = u128::from(WHOLE_MILLI) * place.cost.lost_value
                    / (u128::from(cut.board.slots()) * StateValues::SLOT);
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

    /// The best place for one share on a node; the first among equals.
    fn best_place<'n>(
        &mut self,
        node: &'n Node,
        classes: &[Option<ClassName>],
        lent: &NodeOccupancy,
    ) -> Option<CutPlace<'n>> {
        let share = &self.wanted.gpus.share;
        let mut best: Option<CutPlace<'_>> = None;
        for (index, (device, class)) in (0_u32..).zip(node.devices.iter().zip(classes)) {
            if !serves(device, class.as_ref(), self.wanted, self.counted) {
                continue;
            }
            let Some(room) = room(device, index, Some(lent), share).filter(|room| room.units > 0) else { continue };
            let one = DeviceShare { milli: room.milli_each, units: 1, slots: Slots::NONE };
            let Some(cut) = cut(device, share) else {
                // Lent by number: no other choice exists there.
                return Some(CutPlace {
                    index,
                    share: one,
                    resources: room.resources_each,
                    cost: CutCost::default(),
                    slots: None,
                });
            };
            let before = in_use(device, index, Some(lent)).unwrap_or_default();
            for start in cut.starts(index, Some(lent)) {
                let cost = self.cost(device, &cut, start, before);
                if best.as_ref().is_none_or(|best| cost < best.cost) {
                    let share = DeviceShare { slots: Slots::span(start, cut.shape.size), ..one };
                    let resources = room.resources_each;
                    best = Some(CutPlace { index, share, resources, cost, slots: Some((cut, before)) });
                }
            }
        }
        best
    }

    /// Like [`lay_out`](Self::lay_out), but leaves no trace.
    pub(crate) fn simulate(&mut self, id: &NodeId, node: &Node, units: u32) -> CutLayout {
        let before = self.boards.clone();
        let laid = self.lay_out(id, node, units);
        self.boards = before;
        laid
    }

    /// The states of a node's devices: nodes with equal signatures are interchangeable for cutting.
    pub(crate) fn signature(&self, id: &NodeId, node: &Node) -> Vec<Option<(Board, InUse, bool)>> {
        let classes = self.snapshot.state.device_classes(self.donor, id);
        let lent = self.snapshot.occupancy(self.donor, id);
        let device = |(index, (device, class)): (u32, (&Device, &Option<ClassName>))| {
            let cut = serves(device, class.as_ref(), self.wanted, self.counted)
                .then(|| cut(device, &self.wanted.gpus.share))
                .flatten()?;
            Some((cut.board, in_use(device, index, lent)?, cut.may_recut()))
        };
        let mut states: Vec<_> = (0_u32..).zip(node.devices.iter().zip(classes)).map(device).collect();
        states.sort_unstable();
        states
    }

    /// An existing instance on a device that is not re-cut costs nothing: it could serve no other shape.
    fn cost(&mut self, device: &Device, cut: &Cut<'_>, start: u8, before: InUse) -> CutCost {
        if !cut.may_recut() {
            return CutCost::default();
        }
        let after = before.with(cut.shape, start);
        let weights = self.mig_values.weights(self.wanted.class, device, cut.board);
        let value = |mig_values: &mut MigValues, state| mig_values.values.of(cut.board, &weights, state);
        CutCost {
            crowds: self.boards.get(&cut.board).is_some_and(|together| together.crowded(cut.board, before, after)),
            lost_value: value(self.mig_values, before).saturating_sub(value(self.mig_values, after)),
            made: u32::from(!cut.exists(start)),
            broken: u32::from(before == InUse::default()),
        }
    }
}

impl CutCost {
    fn and(self, other: Self) -> Self {
        Self {
            crowds: self.crowds || other.crowds,
            lost_value: self.lost_value.saturating_add(other.lost_value),
            made: self.made + other.made,
            broken: self.broken + other.broken,
        }
    }
}

impl BoardDemand {
    /// Reserves room for each request behind that fits besides the current request and all older ones.
    fn of(
        snapshot: &Snapshot<'_>,
        donor: &ClusterId,
        wanted: &Wanted<'_>,
        board: Board,
        device: &Device,
        states: BTreeMap<InUse, u32>,
    ) -> Self {
        let (own_shape, left) =
            (cut(device, &wanted.gpus.share).map_or(MAX_SHAPES, |cut| cut.shape_index), wanted.gpus.count);
        let (mut instances, mut behind) = (left, Vec::new());
        for spec in snapshot.lookahead.iter().filter(|spec| may_use_device(snapshot, donor, wanted.class, device, spec))
        {
            let Some(cut) = cut(device, &spec.gpus.share) else { continue };
            instances = instances.saturating_add(spec.gpus.count);
            if instances > MAX_LOOKAHEAD_INSTANCES {
                break;
            }
            behind.push((cut.shape_index, spec.gpus.count));
        }
        let most = usize::try_from(instances.min(2 * MAX_LOOKAHEAD_INSTANCES)).unwrap_or(usize::MAX);
        let alike = |(state, count): (InUse, u32)| {
            std::iter::repeat_n(state, most.min(usize::try_from(count).unwrap_or(usize::MAX)))
        };
        let states = states.into_iter().flat_map(alike).collect();
        let mut together = Self { states, lookahead: [0; MAX_SHAPES], own_shape, left };
        if behind.is_empty() || !together.fits(board, left) {
            return together;
        }
        for (shape_index, count) in behind {
            let before = together.lookahead;
            if let Some(asked) = together.lookahead.get_mut(shape_index) {
                *asked += count;
            }
            if !together.fits(board, left) {
                together.lookahead = before;
            }
        }
        together
    }

    /// Whether `own` instances of the current request fit together with all reserved instances.
    fn fits(&self, board: Board, own: u32) -> bool {
        let mut asked = self.lookahead;
        if let Some(asked) = asked.get_mut(self.own_shape) {
            *asked += own;
        }
        fit_together(board, &self.states, &asked)
    }

    /// Records one placed instance, which changed a device from `before` to `after`.
    fn take(&mut self, before: InUse, after: InUse) {
        self.left = self.left.saturating_sub(1);
        if let Some(state) = self.states.iter_mut().find(|state| **state == before) {
            *state = after;
        }
    }

    /// Whether the remaining demand no longer fits once a device changes from `before` to `after`.
    fn crowded(&self, board: Board, before: InUse, after: InUse) -> bool {
        if self.lookahead == [0; MAX_SHAPES] {
            return false;
        }
        let mut next = self.clone();
        next.take(before, after);
        !next.fits(board, next.left)
    }
}

/// Whether a waiting request could use devices like this one, by its own restrictions and current policy.
fn may_use_device(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    class: &ClassName,
    device: &Device,
    spec: &RequestSpec,
) -> bool {
    let ask = PolicyQuery::of(spec, class, spec.least_milli());
    spec.origin != *donor
        && (spec.allow_donors.is_empty() || spec.allow_donors.contains(donor))
        && !spec.deny_donors.contains(donor)
        && matches_choice(&spec.gpus.devices, class, device)
        && permitted(snapshot.may_borrow(donor, ask)).is_ok()
}
