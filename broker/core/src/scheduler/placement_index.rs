//! Packing over each donor's nodes, kept from one plan to the next and brought up to date by differences.

pub(crate) mod all_nodes;
pub(crate) mod donor_index;
pub(crate) mod expected;
pub(crate) mod lay_out;

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_policy::Bundle;

use self::all_nodes::AllNodes;
use self::donor_index::DonorIndex;
use self::expected::Expected;
use self::lay_out::lay_out;
use crate::feasibility::donors::promise::{Member, Promise, promising_nothing};
use crate::feasibility::donors::score::ALIKE_MILLI;
use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::{DeviceChoice, RequestSpec, Share};
use crate::model::id::{ClusterId, NodeId};
use crate::model::placement::Placement;
use crate::model::request::Request;
use crate::model::work::{WorkMix, WorkType};
use crate::scheduler::packing::{Task, TaskId};

/// One part in so many of the work that is counted must be new before it is looked at again.
const PATIENCE: u64 = 64;
/// Work without GPUs that is counted at least: of more, what is older counts half each time that the state forgot as
/// many requests as it holds. So both are counted over about the same time.
const LEAST_LOCAL: u64 = 1 << 14;
/// Work without GPUs that is counted at most, whatever requests come.
const MAX_LOCAL: u64 = 1 << 18;

/// Packing for all donors.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlacementIndex {
    /// By whose classes the devices are sorted.
    bundle: Option<Arc<Bundle>>,
    /// What is known from before.
    known: WorkMix,
    /// Work without GPUs that was advised lately: local to donors, so that the state does not hold it.
    local: WorkMix,
    /// How many requests the state had forgotten when that was halved the last time.
    halved_at: u64,
    /// How often that was.
    advised: u64,
    expected: Expected,
    /// How many requests had been submitted, and how often advice was given, when work was last looked at.
    looked_at: Option<u64>,
    all_nodes: AllNodes,
    donors: BTreeMap<ClusterId, DonorIndex>,
    /// What MIG devices are worth that are cut as leases need them.
    mig_values: MigValues,
}

impl PlacementIndex {
    /// Expects `work` until what comes says otherwise.
    pub(crate) fn expecting(work: WorkMix) -> Self {
        Self { known: work, ..Self::default() }
    }

    /// Counts in what a request asks for that the state does not hold.
    pub(crate) fn count_in(&mut self, request: &Request) {
        self.local.add(WorkType::of(request), 1);
        self.advised = self.advised.saturating_add(1);
    }

    /// Begins a plan: brings all up to date as `snapshot` has it.
    pub(crate) fn begin(&mut self, snapshot: &Snapshot<'_>) {
        let bundle = snapshot.state.policy.as_ref().map(|record| &record.bundle);
        if !self.bundle.iter().zip(bundle).any(|(before, now)| Arc::ptr_eq(before, now)) {
            self.start_over();
            self.bundle = bundle.cloned();
        }
        if self.all_nodes.is_overgrown() {
            self.start_over();
        }
        self.expect(snapshot);
        let all_nodes = &mut self.all_nodes;
        self.donors.retain(|donor, donor_index| {
            let offers = snapshot.state.clusters.get(donor).is_some_and(|cluster| cluster.offer.is_some());
            if !offers {
                all_nodes.remove_donor(donor_index.number);
            }
            offers
        });
        for donor in snapshot.state.clusters.iter().filter(|(_, cluster)| cluster.offer.is_some()).map(|(id, _)| id) {
            let donor_index = self.donors.entry(donor.clone()).or_insert_with(|| DonorIndex::at(all_nodes.add_donor()));
            donor_index.catch_up(snapshot, donor, all_nodes);
        }
        self.all_nodes.settle(&self.expected);
    }

    /// Looks at what is asked for lately once enough was submitted to tell.
    fn expect(&mut self, snapshot: &Snapshot<'_>) {
        let came = snapshot.state.next_request.saturating_add(self.advised);
        let since = came.abs_diff(self.looked_at.unwrap_or(0));
        let counted = [snapshot.state.work(), &self.known, &self.local].map(WorkMix::all);
        if self.looked_at.is_some() && since <= counted.into_iter().fold(0, u64::saturating_add) / PATIENCE {
            return;
        }
        self.looked_at = Some(came);
        let mut lately = snapshot.state.work().clone();
        self.local.types().for_each(|(work, times)| lately.add(work.clone(), times));
        let expected = Expected::of(&lately, &self.known);
        if self.expected.is_far_from(&expected) {
            self.expected = expected;
            self.mig_values.expect(&self.expected.parts);
            self.all_nodes.expect(&self.expected);
        }
    }

    /// Forgets all nodes.
    fn start_over(&mut self) {
        self.donors.clear();
        self.all_nodes = AllNodes::default();
        self.all_nodes.expect(&self.expected);
    }

    /// Forgets all nodes, and what was expected of the state.
    pub(crate) fn forget(&mut self) {
        *self = Self::expecting(std::mem::take(&mut self.known));
    }

    /// What each donor leaves idle at least if it serves `spec`, in thousandths of devices; `None` where that is not
    /// known before it is asked. Donors that have no room are left out.
    pub(crate) fn promises<'s>(&mut self, snapshot: &Snapshot<'s>, spec: &RequestSpec) -> Vec<Promise<'s>> {
        let state = snapshot.state;
        let class = match &spec.gpus.devices {
            DeviceChoice::Class(class) if spec.members.is_none() => class,
            _ => return promising_nothing(state, spec),
        };
        let wanted = Wanted {
            class,
            gpus: &spec.gpus,
            topology: spec.topology,
            members: None,
            selector: None,
            most_milli: None,
        };
        let Some(tasks) = self.all_nodes.tasks_of(&wanted) else { return promising_nothing(state, spec) };
        let states = &mut self.all_nodes.states;
        let asked: Vec<TaskId> = tasks.iter().map(|(task, _)| states.ask(task)).collect();
        let (mut promises, mut open) = (Vec::with_capacity(self.donors.len()), Vec::with_capacity(self.donors.len()));
        // Both tables are in the order of ids, and a plan begins with a pack for each that offers something.
        let offering = (0..).zip(&state.clusters).filter(|(_, (_, cluster))| cluster.offer.is_some());
        for ((at, (donor, _)), (id, donor_index)) in offering.zip(&self.donors) {
            debug_assert_eq!(donor, id);
            let member = Member { at, donor };
            if *donor == spec.origin {
                continue;
            }
            if !donor_index.is_all(&wanted) {
                promises.push(Promise { member, idle_milli: None, lent_milli: Some(donor_index.lent_milli) });
                continue;
            }
            let least = asked.iter().filter_map(|asked| states.idle_milli_at_least(donor_index.number, *asked)).min();
            open.extend(least.map(|least| {
                (least.div_euclid(ALIKE_MILLI), donor_index.lent_milli, least, member, donor_index.number)
            }));
        }
        // Who is as good as it may be at best is asked before all who may not be better: of those no more is looked
        // for.
        open.sort_unstable();
        let mut known = false;
        for (alike, lent, least, member, number) in open {
            let lent_milli = Some(lent);
            if known {
                promises.push(Promise { member, idle_milli: Some(least), lent_milli });
                continue;
            }
            let choices = asked.iter().filter_map(|asked| states.choose(number, *asked));
            let Some(idle) = choices.map(|choice| choice.idle_milli()).min() else { continue };
            known = idle.div_euclid(ALIKE_MILLI) == alike;
            promises.push(Promise { member, idle_milli: Some(idle), lent_milli });
        }
        promises
    }

    /// Finds room at `donor`: the place that leaves least idle in the end.
    pub(crate) fn fit(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Fit {
        let (mig_values, all_nodes, Some(donor_index)) =
            (&mut self.mig_values, &mut self.all_nodes, self.donors.get(donor))
        else {
            return Fit::Lacks { now: 0, ever: 0 };
        };
        let alone = wanted.members.is_none();
        let Some(tasks) = alone.then(|| all_nodes.tasks_of(wanted)).flatten() else {
            return fit(snapshot, donor, wanted, mig_values);
        };
        let mut best: Option<(i64, i64, i64, Placement)> = None;
        for (task, served) in tasks.iter() {
            let asked = all_nodes.states.ask(task);
            let Some(choice) = all_nodes.states.choose(donor_index.number, asked) else { continue };
            // What a way gives above what is asked for is wasted, too.
            let takes = choice.idle_milli().saturating_add(i64::from(served.milli_each));
            if best.as_ref().is_none_or(|(least, ..)| takes < *least)
                && let Some(node) = all_nodes.states.first_node(choice)
                && let Some(node) = donor_index.node(snapshot, donor, node)
                && let Some(placement) = lay_out(snapshot, donor, node, choice.level, (task, served), wanted.gpus)
            {
                best = Some((takes, choice.idle_milli(), served.above_milli(&wanted.gpus.share), placement));
            }
        }
        let is_memory = matches!(wanted.gpus.share, Share::MemoryMib(_));
        match best.map(|(_, idle, above, placement)| (idle.saturating_add(above), above, placement)) {
            // It may be had in smaller pieces where packing does not look.
            Some((waste_milli, above, placement))
                if (is_memory || above > 0) && donor_index.is_elsewhere(wanted.class) =>
            {
                Fit::Fits { placement, waste_milli }.or_smaller(fit(snapshot, donor, wanted, mig_values))
            }
            Some((waste_milli, _, placement)) => Fit::Fits { placement, waste_milli },
            None if donor_index.is_all(wanted) => Fit::Lacks { now: 0, ever: 0 },
            None => fit(snapshot, donor, wanted, mig_values),
        }
    }

    /// Finds room at `donor` by looking at each node as `snapshot` has it.
    pub(crate) fn look(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>) -> Fit {
        fit(snapshot, donor, wanted, &mut self.mig_values)
    }

    /// The node of `donor` that work without GPUs leaves least idle on. Such work is expected as often as it comes
    /// here.
    pub(crate) fn advise(
        &mut self,
        snapshot: &Snapshot<'_>,
        donor: &ClusterId,
        cpu_milli: u64,
        memory_mib: u64,
    ) -> Option<NodeId> {
        let (all, held) = (self.local.all(), snapshot.state.work().all());
        let forgotten = snapshot.state.next_request.saturating_sub(held);
        if all >= MAX_LOCAL || all >= LEAST_LOCAL && forgotten.saturating_sub(self.halved_at) >= held {
            self.local.halve();
            self.halved_at = forgotten;
        }
        self.local.add(WorkType::without_gpus(cpu_milli, memory_mib), 1);
        self.advised = self.advised.saturating_add(1);
        let task = Task { cpu_milli, memory_mib, devices: 0, milli: 0, kinds: Vec::new() };
        let (donor_index, asked) = (self.donors.get(donor)?, self.all_nodes.states.ask(&task));
        let choice = self.all_nodes.states.choose(donor_index.number, asked)?;
        self.all_nodes.states.first_node(choice).map(|node| donor_index.name(node).clone())
    }

    /// Counts a placement in that `snapshot` has taken.
    pub(crate) fn take(&mut self, snapshot: &Snapshot<'_>, placement: &Placement) {
        let Some(donor_index) = self.donors.get_mut(&placement.donor) else { return };
        donor_index.lent_milli = snapshot.lent_milli(&placement.donor);
        for id in placement.nodes.keys() {
            donor_index.take(snapshot, &placement.donor, &mut self.all_nodes, id);
        }
    }
}
