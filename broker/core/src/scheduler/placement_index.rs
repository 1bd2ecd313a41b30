//! The placement index: all donors' nodes, by free capacity. It survives from plan to plan and is updated by differences.

pub(crate) mod all_nodes;
pub(crate) mod donor_index;
pub(crate) mod expected;
pub(crate) mod lay_out;

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_policy::Bundle;
use comity_types::{ClusterId, NodeId};

use self::all_nodes::AllNodes;
use self::donor_index::DonorIndex;
use self::expected::Expected;
use self::lay_out::lay_out;
use crate::feasibility::donors::promise::{Member, Promise, unknown_promises};
use crate::feasibility::donors::score::WASTE_STEP_MILLI;
use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::{DeviceChoice, RequestSpec, Share};
use crate::model::placement::Placement;
use crate::model::request::Request;
use crate::model::work::{WorkMix, WorkType};
use crate::scheduler::packing::{Task, TaskId};

/// Re-estimate expected work once 1/64 of the sample is new.
const REESTIMATE_FRACTION: u64 = 64;
/// Sample size of local work below which nothing is forgotten. Above it, counts are halved each time the state forgets
/// as many requests as it holds, so that both samples cover about the same time.
const MIN_LOCAL: u64 = 1 << 14;
/// Upper bound on the sample of local work: beyond it, counts are halved at once.
const MAX_LOCAL: u64 = 1 << 18;

/// The placement index of all donors.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlacementIndex {
    /// The policy whose classes sort the devices.
    bundle: Option<Arc<Bundle>>,
    /// Work known from history.
    known: WorkMix,
    /// CPU-only work that recently asked for advice. It is local to donors, so the state does not hold it.
    local: WorkMix,
    /// Number of requests the state had forgotten at the last halving.
    halved_at: u64,
    /// Number of tasks ever added to `local`.
    counted: u64,
    expected: Expected,
    /// Requests submitted plus `counted` at the last estimate of expected work.
    estimated_at: Option<u64>,
    all_nodes: AllNodes,
    donors: BTreeMap<ClusterId, DonorIndex>,
    /// Values of MIG device states.
    mig_values: MigValues,
}

impl PlacementIndex {
    /// Expects `work` until observed work differs.
    pub(crate) fn expecting(work: WorkMix) -> Self {
        Self { known: work, ..Self::default() }
    }

    /// Adds a request that the state does not hold to the sample of work.
    pub(crate) fn count_request(&mut self, request: &Request) {
        self.local.add(WorkType::of(request), 1);
        self.counted = self.counted.saturating_add(1);
    }

    /// Begins a plan: updates all donors to `snapshot`.
    pub(crate) fn begin(&mut self, snapshot: &Snapshot<'_>) {
        let bundle = snapshot.state.policy.as_ref().map(|record| &record.bundle);
        if !self.bundle.iter().zip(bundle).any(|(before, now)| Arc::ptr_eq(before, now)) {
            self.start_over();
            self.bundle = bundle.cloned();
        }
        if self.all_nodes.is_overgrown() {
            self.start_over();
        }
        self.update_expected(snapshot);
        let all_nodes = &mut self.all_nodes;
        self.donors.retain(|donor, donor_index| {
            let offers = snapshot.state.clusters.get(donor).is_some_and(|cluster| cluster.offer.is_some());
            if !offers {
                all_nodes.remove_donor(donor_index.number);
            }
            offers
        });
        for donor in snapshot.state.clusters.iter().filter(|(_, cluster)| cluster.offer.is_some()).map(|(id, _)| id) {
            let donor_index =
                self.donors.entry(donor.clone()).or_insert_with(|| DonorIndex::empty(all_nodes.add_donor()));
            donor_index.sync(snapshot, donor, all_nodes);
        }
        self.all_nodes.refresh_kinds(&self.expected);
    }

    /// Re-estimates expected work once enough of the sample is new.
    fn update_expected(&mut self, snapshot: &Snapshot<'_>) {
        let arrived = snapshot.state.next_request.saturating_add(self.counted);
        let new = arrived.abs_diff(self.estimated_at.unwrap_or(0));
        let sample = [snapshot.state.work(), &self.known, &self.local].map(WorkMix::all);
        let sample = sample.into_iter().fold(0, u64::saturating_add);
        if self.estimated_at.is_some() && new <= sample / REESTIMATE_FRACTION {
            return;
        }
        self.estimated_at = Some(arrived);
        let mut lately = snapshot.state.work().clone();
        self.local.types().for_each(|(work, times)| lately.add(work.clone(), times));
        let expected = Expected::of(&lately, &self.known);
        if self.expected.differs_materially_from(&expected) {
            self.expected = expected;
            self.mig_values.expect(&self.expected.parts);
            self.all_nodes.expect(&self.expected);
        }
    }

    /// Drops all nodes.
    fn start_over(&mut self) {
        self.donors.clear();
        self.all_nodes = AllNodes::default();
        self.all_nodes.expect(&self.expected);
    }

    /// Drops all nodes and everything learnt from the state.
    pub(crate) fn forget(&mut self) {
        *self = Self::expecting(std::mem::take(&mut self.known));
    }

    /// For each donor, a lower bound on the thousandths of devices that it leaves idle if it serves `spec`; `None`
    /// where only asking the donor tells. Skips donors without room.
    pub(crate) fn promises<'s>(&mut self, snapshot: &Snapshot<'s>, spec: &RequestSpec) -> Vec<Promise<'s>> {
        let state = snapshot.state;
        let class = match &spec.gpus.devices {
            DeviceChoice::Class(class) if spec.members.is_none() => class,
            _ => return unknown_promises(state, spec),
        };
        let wanted = Wanted {
            class,
            gpus: &spec.gpus,
            topology: spec.topology,
            members: None,
            selector: None,
            most_milli: None,
            unenforced_nvlink: false,
        };
        let Some(tasks) = self.all_nodes.translate(&wanted) else { return unknown_promises(state, spec) };
        let states = &mut self.all_nodes.states;
        let asked: Vec<TaskId> = tasks.iter().map(|served| states.ask(&served.task)).collect();
        let (mut promises, mut open) = (Vec::with_capacity(self.donors.len()), Vec::with_capacity(self.donors.len()));
        // Both tables are sorted by id, and `begin` keeps one index for each donor with an offer.
        let offering = (0..).zip(&state.clusters).filter(|(_, (_, cluster))| cluster.offer.is_some());
        for ((at, (donor, _)), (id, donor_index)) in offering.zip(&self.donors) {
            debug_assert_eq!(donor, id);
            let member = Member { at, donor };
            if *donor == spec.origin {
                continue;
            }
            if !donor_index.indexes_all_candidates(&wanted) {
                promises.push(Promise { member, idle_milli: None, lent_milli: Some(donor_index.lent_milli) });
                continue;
            }
            let least = asked.iter().filter_map(|asked| states.idle_milli_at_least(donor_index.number, *asked)).min();
            open.extend(least.map(|least| {
                (least.div_euclid(WASTE_STEP_MILLI), donor_index.lent_milli, least, member, donor_index.number)
            }));
        }
        // Donors are sorted by their bound. Once one donor meets its bound exactly, the rest keep their bounds without
        // an exact query.
        open.sort_unstable();
        let mut bound_met = false;
        for (alike, lent, least, member, number) in open {
            let lent_milli = Some(lent);
            if bound_met {
                promises.push(Promise { member, idle_milli: Some(least), lent_milli });
                continue;
            }
            let choices = asked.iter().filter_map(|asked| states.choose(number, *asked));
            let Some(idle) = choices.map(|choice| choice.idle_milli()).min() else { continue };
            bound_met = idle.div_euclid(WASTE_STEP_MILLI) == alike;
            promises.push(Promise { member, idle_milli: Some(idle), lent_milli });
        }
        promises
    }

    /// Finds the placement at `donor` that leaves the least idle in the end.
    pub(crate) fn fit(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Fit {
        let (mig_values, all_nodes, Some(donor_index)) =
            (&mut self.mig_values, &mut self.all_nodes, self.donors.get(donor))
        else {
            return Fit::Lacks { now: 0, ever: 0 };
        };
        let has_members = wanted.members.is_some();
        let Some(tasks) = (!has_members).then(|| all_nodes.translate(wanted)).flatten() else {
            return fit(snapshot, donor, wanted, mig_values);
        };
        let mut best: Option<(i64, i64, i64, Placement)> = None;
        for served in tasks.iter() {
            let asked = all_nodes.states.ask(&served.task);
            let Some(choice) = all_nodes.states.choose(donor_index.number, asked) else { continue };
            // Device parts above the request are wasted too.
            let takes = choice.idle_milli().saturating_add(i64::from(served.share.milli_each));
            if best.as_ref().is_none_or(|(least, ..)| takes < *least)
                && let Some(node) = all_nodes.states.first_node(choice)
                && let Some((id, node)) = donor_index.node(snapshot, donor, node)
                && let Some(placement) = lay_out(snapshot, donor, id, node, choice.level, served, wanted.gpus)
            {
                best = Some((takes, choice.idle_milli(), served.share.excess_milli(&wanted.gpus.share), placement));
            }
        }
        let is_memory = matches!(wanted.gpus.share, Share::MemoryMib(_));
        match best.map(|(_, idle, excess, placement)| (idle.saturating_add(excess), excess, placement)) {
            // A node outside the index may offer a smaller piece.
            Some((waste_milli, excess, placement))
                if (is_memory || excess > 0) && donor_index.has_unindexed(wanted.class) =>
            {
                Fit::Fits { placement, waste_milli }.or_smaller(fit(snapshot, donor, wanted, mig_values))
            }
            Some((waste_milli, _, placement)) => Fit::Fits { placement, waste_milli },
            None if donor_index.indexes_all_candidates(wanted) => Fit::Lacks { now: 0, ever: 0 },
            None => fit(snapshot, donor, wanted, mig_values),
        }
    }

    /// Finds room at `donor` by scanning its nodes in `snapshot`.
    pub(crate) fn fit_by_scan(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Fit {
        fit(snapshot, donor, wanted, &mut self.mig_values)
    }

    /// The node of `donor` on which CPU-only work leaves the least idle. Counts the work in the sample of expected
    /// work.
    pub(crate) fn advise(
        &mut self,
        snapshot: &Snapshot<'_>,
        donor: &ClusterId,
        cpu_milli: u64,
        memory_mib: u64,
    ) -> Option<NodeId> {
        let (local, held) = (self.local.all(), snapshot.state.work().all());
        let forgotten = snapshot.state.next_request.saturating_sub(held);
        if local >= MAX_LOCAL || local >= MIN_LOCAL && forgotten.saturating_sub(self.halved_at) >= held {
            self.local.halve();
            self.halved_at = forgotten;
        }
        self.local.add(WorkType::without_gpus(cpu_milli, memory_mib), 1);
        self.counted = self.counted.saturating_add(1);
        let task = Task { cpu_milli, memory_mib, devices: 0, milli: 0, kinds: Vec::new() };
        let (donor_index, asked) = (self.donors.get(donor)?, self.all_nodes.states.ask(&task));
        let choice = self.all_nodes.states.choose(donor_index.number, asked)?;
        self.all_nodes.states.first_node(choice).map(|node| donor_index.name(node).clone())
    }

    /// Updates the nodes of a placement to their occupancy in `snapshot`, which this plan has changed.
    pub(crate) fn update_nodes(&mut self, snapshot: &Snapshot<'_>, placement: &Placement) {
        let Some(donor_index) = self.donors.get_mut(&placement.donor) else { return };
        donor_index.lent_milli = snapshot.lent_milli(&placement.donor);
        for id in placement.nodes.keys() {
            donor_index.record_planned(snapshot, &placement.donor, &mut self.all_nodes, id);
        }
    }
}
