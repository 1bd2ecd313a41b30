//! Plans the next step of one node. Pure: it depends on the node, its leases, the configurations and earlier plans.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comity_types::LeaseId;
use comity_types::mig::Board;

use super::device_layout::{DeviceLayout, Instances, fill, pack};
use super::mig_book::{BookedDevice, CutRefusal, LeaseCut, NodeBook};
use super::mig_config::{MigConfigs, NodeCounts, OWN_PREFIX, node_counts, own_name};
use super::mig_node::{BegunChange, resource};
use super::node_change::{NodeChange, Progress};
use super::node_memory::NodeMemory;
use super::node_state::{LeaseNeed, NodeState};
use super::supply::Supply;

/// A write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CutStep {
    /// Applies a configuration.
    Apply(ApplyStep),
    /// Sets the label.
    SetLabel(String),
    /// Removes the annotation of the owner's configuration.
    ForgetBefore,
    /// Removes the annotation of a change that is over.
    ForgetChange,
}

/// Applies a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApplyStep {
    /// Its name.
    pub(crate) name: String,
    /// Its content, if it is the agent's.
    pub(crate) counts: Option<NodeCounts>,
    /// Value of the annotation of the owner's configuration, if it is to be set.
    pub(crate) before: Option<String>,
    /// Value of the annotation of the change.
    pub(crate) change: BegunChange,
    /// Resources that no pod of the node may use.
    pub(crate) unused: BTreeSet<String>,
}

/// A plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePlan {
    /// For offers.
    pub(crate) book: NodeBook,
    /// For the leases.
    pub(crate) leases: BTreeMap<LeaseId, LeaseCut>,
    /// The next write.
    pub(crate) step: Option<CutStep>,
    /// In force once the write is done.
    pub(crate) memory: NodeMemory,
}

/// Plans the next step.
pub(crate) fn plan(state: NodeState<'_>, mut memory: NodeMemory) -> NodePlan {
    let is_wanted = |lease: &LeaseId| state.leases.iter().any(|need| need.lease == *lease);
    memory.blocked_since.retain(|lease, _| is_wanted(lease));
    memory.refused.retain(|lease, _| is_wanted(lease));
    memory.failure = memory.failure.filter(|failure| failure.until > state.now);
    let known = state.configs.map_err(str::to_owned).and_then(|configs| {
        let (board, gpus) = state.node.board()?;
        Ok(KnownNode { state, board, gpus, configs })
    });
    match known {
        Ok(known) => {
            let is_first = !std::mem::replace(&mut memory.is_known, true);
            let mut planned = known.plan(memory, is_first);
            let is_over = planned.memory.change.is_none() && state.node.change.is_some();
            if planned.step.is_none() && is_over {
                planned.step = Some(CutStep::ForgetChange);
            }
            planned
        }
        Err(reason) => unknown(state, memory, reason),
    }
}

/// Without layouts, leases wait unless the node has their instances anyway.
fn unknown(state: NodeState<'_>, memory: NodeMemory, reason: String) -> NodePlan {
    let served = Supply::of(state, None).serve(state.leases);
    let status = |need: &LeaseNeed| match memory.refused.get(&need.lease) {
        Some(refusal) => LeaseCut::Refused(refusal.clone()),
        None if served.contains(&need.lease) => LeaseCut::Ready,
        None => LeaseCut::Waiting(reason.clone()),
    };
    let leases = state.leases.iter().map(|need| (need.lease, status(need))).collect();
    NodePlan { book: NodeBook::Unknown(reason), leases, step: None, memory }
}

/// A node whose board and configurations are known.
#[derive(Clone, Copy)]
struct KnownNode<'a> {
    state: NodeState<'a>,
    board: Board,
    gpus: usize,
    configs: &'a MigConfigs,
}

impl KnownNode<'_> {
    /// The layouts under a configuration, with leases' instances where the broker placed them.
    fn layouts(&self, name: &str) -> Result<Vec<DeviceLayout>, String> {
        let counts = self.configs.counts(name, self.gpus, self.board)?;
        let layout = |(device, counts)| {
            let Some(counts) = counts else { return Ok(DeviceLayout::Whole) };
            let instances = pack(self.board, &counts, &self.placed(device)).ok_or_else(|| {
                format!("configuration {name:?} gives device {device} instances that its board does not hold")
            })?;
            if instances.values().any(|profile| is_media(profile)) {
                return Err(format!("configuration {name:?} has instances with media extensions, which are not cut"));
            }
            Ok(DeviceLayout::Cut(instances))
        };
        counts.into_iter().enumerate().map(layout).collect()
    }

    /// Instances that leases have on a device, by the broker's choice.
    fn placed(&self, device: usize) -> Instances {
        let of_device = |need: &LeaseNeed| {
            let starts = need.devices.get(&device).cloned().unwrap_or_default();
            let profile = need.profile.clone();
            starts.into_iter().map(move |start| (start, profile.clone())).collect::<Vec<_>>()
        };
        self.state.leases.iter().flat_map(of_device).collect()
    }

    fn plan(&self, mut memory: NodeMemory, is_first: bool) -> NodePlan {
        let NodeState { node, settings, now, .. } = self.state;
        if let Some(change) = memory.change.take() {
            let before = change.previous().and_then(|name| self.layouts(name).ok());
            let waiting = change.leases().clone();
            match change.follow(node, before.as_deref(), settings, now) {
                Progress::UnderWay(change, label) => return self.under_way(memory, change, label),
                Progress::Failed(message) => {
                    // Others may still be served by instances of other devices.
                    let served = Supply::of(self.state, None).serve(self.state.leases);
                    memory.fail(&waiting - &served, message, now + settings.backoff());
                }
                Progress::Done | Progress::Abandoned => {}
            }
        }
        let config = node.config();
        if config.is_empty() {
            return unknown(self.state, memory, "the node has no label nvidia.com/mig.config".to_owned());
        }
        let layouts = match self.layouts(config) {
            Ok(layouts) => layouts,
            Err(reason) => return unknown(self.state, memory, reason),
        };
        if node.state() == "success" && node.has(&layouts) {
            return self.settled(memory, layouts);
        }
        if let Some(change) = self.begun_before_restart(layouts).filter(|_| is_first) {
            return self.under_way(memory, change, None);
        }
        let reason = format!(
            "the node's instances are not those of configuration {config:?}, nvidia.com/mig.config.state is {:?}",
            node.state()
        );
        unknown(self.state, memory, reason)
    }

    /// The change that the node's annotation records. An own configuration without the annotation is a change, too: it
    /// begins now, and nobody knows where to return.
    fn begun_before_restart(&self, layouts: Vec<DeviceLayout>) -> Option<NodeChange> {
        let NodeState { node, now, unix_seconds, .. } = self.state;
        let config = node.config().to_owned();
        let served = Supply::of(self.state, None).serve(self.state.leases);
        let leases = self.state.leases.iter().map(|need| need.lease).filter(|lease| !served.contains(lease)).collect();
        match &node.change {
            Some(begun) if begun.to == config => {
                let earlier = Duration::from_secs(unix_seconds.saturating_sub(begun.begun));
                let previous = Some(begun.from.clone());
                Some(NodeChange::begin(config, layouts, previous, leases, now).begun_earlier(earlier))
            }
            Some(begun) if begun.from == config => Some(NodeChange::returning(config, leases, now)),
            _ if config.starts_with(OWN_PREFIX) => Some(NodeChange::begin(config, layouts, None, leases, now)),
            _ => None,
        }
    }

    fn under_way(&self, memory: NodeMemory, change: NodeChange, label: Option<String>) -> NodePlan {
        let before = || change.previous().and_then(|name| self.layouts(name).ok());
        let layouts = change.layouts().map(<[DeviceLayout]>::to_vec).or_else(before);
        let waits = change.describe(self.state.node);
        let served = Supply::of(self.state, layouts.as_deref()).serve(self.state.leases);
        let status = |need: &LeaseNeed| match memory.refused.get(&need.lease) {
            Some(refusal) => LeaseCut::Refused(refusal.clone()),
            None if served.contains(&need.lease) && !change.leases().contains(&need.lease) => LeaseCut::Ready,
            None => LeaseCut::Waiting(waits.clone()),
        };
        let leases = self.state.leases.iter().map(|need| (need.lease, status(need))).collect();
        let book = layouts.map_or_else(|| NodeBook::Unknown(waits.clone()), |layouts| self.book(layouts, |_| false));
        let step = label.map(CutStep::SetLabel);
        NodePlan { book, leases, step, memory: NodeMemory { change: Some(change), ..memory } }
    }

    fn book(&self, layouts: Vec<DeviceLayout>, may_cut: impl Fn(usize) -> bool) -> NodeBook {
        let device = |(device, layout): (usize, DeviceLayout)| {
            let leased = self.leased(device, &layout);
            BookedDevice { layout, leased, may_cut: may_cut(device) }
        };
        NodeBook::Known(layouts.into_iter().enumerate().map(device).collect())
    }

    /// Starts of a device's instances that leases hold.
    fn leased(&self, device: usize, layout: &DeviceLayout) -> BTreeSet<u8> {
        let placed = self.placed(device);
        layout
            .instances()
            .filter(|(start, profile)| placed.get(start).is_some_and(|held| held == profile))
            .map(|(start, _)| start)
            .collect()
    }

    /// No change is under way, and the node has what its configuration says.
    fn settled(&self, mut memory: NodeMemory, layouts: Vec<DeviceLayout>) -> NodePlan {
        let supply = Supply::of(self.state, Some(&layouts));
        let served = supply.serve(self.state.leases);
        let is_done = |need: &&LeaseNeed| {
            memory.refused.contains_key(&need.lease) || served.contains(&need.lease) && self.is_in_place(need, &layouts)
        };
        let open: Vec<&LeaseNeed> = self.state.leases.iter().filter(|need| !is_done(need)).collect();
        memory.blocked_since.retain(|lease, _| !served.contains(lease));
        let cut = self.cut(&mut memory, &layouts, &supply, &open);
        let step = if cut.is_some() { cut } else { self.merge(&mut memory, &layouts, &supply) };
        let is_being_cut =
            |lease: &LeaseId| memory.change.as_ref().is_some_and(|change| change.leases().contains(lease));
        let status = |need: &LeaseNeed| match memory.refused.get(&need.lease) {
            Some(refusal) => LeaseCut::Refused(refusal.clone()),
            None if served.contains(&need.lease) && !is_being_cut(&need.lease) => LeaseCut::Ready,
            None => LeaseCut::Waiting("its instances are about to be cut".to_owned()),
        };
        let leases = self.state.leases.iter().map(|need| (need.lease, status(need))).collect();
        let may_cut = |device: usize| memory.failure.is_none() && self.is_free(device, &layouts);
        let book = self.book(layouts.clone(), may_cut);
        NodePlan { book, leases, step, memory }
    }

    /// Whether a lease's instances start where the broker placed them. If they do not, but others serve, the device is
    /// cut if it is empty: otherwise the broker would lend the same instance twice.
    fn is_in_place(&self, need: &LeaseNeed, layouts: &[DeviceLayout]) -> bool {
        need.devices.iter().all(|(device, starts)| {
            let leased = layouts.get(*device).map(|layout| self.leased(*device, layout));
            leased.is_some_and(|leased| starts.iter().all(|start| leased.contains(start)))
        })
    }

    /// Whether a device is empty and holds no lease's instance.
    fn is_free(&self, device: usize, layouts: &[DeviceLayout]) -> bool {
        layouts.get(device).is_some_and(|layout| {
            *layout != DeviceLayout::Whole
                && layout.instances().all(|(_, profile)| self.state.node.used(&resource(profile)) == 0)
                && self.leased(device, layout).is_empty()
        })
    }

    /// Cuts devices for leases whose instances are missing or elsewhere; refuses those that can never be served.
    fn cut(
        &self,
        memory: &mut NodeMemory,
        layouts: &[DeviceLayout],
        supply: &Supply,
        open: &[&LeaseNeed],
    ) -> Option<CutStep> {
        let served = supply.serve(self.state.leases);
        if let Some(failure) = memory.failure.clone() {
            for need in open.iter().filter(|need| !served.contains(&need.lease)) {
                memory.refuse(need.lease, CutRefusal::new("mig-failed", failure.message.clone()));
            }
            return None;
        }
        let mut wanted: BTreeMap<usize, Instances> = BTreeMap::new();
        let mut waiting = BTreeSet::new();
        for need in open {
            match self.add(need, &wanted, layouts) {
                Ok(more) => {
                    wanted = more;
                    waiting.insert(need.lease);
                }
                Err(_) if served.contains(&need.lease) => {}
                Err(refusal) => memory.block(need.lease, refusal, self.state.now),
            }
        }
        let mut next = layouts.to_vec();
        for (device, wanted) in &wanted {
            let filled = next.get(*device).and_then(|layout| fill(self.board, wanted, layout))?;
            *next.get_mut(*device)? = DeviceLayout::Cut(filled);
        }
        if waiting.is_empty() {
            return None;
        }
        if !supply.is_covered_by(&next) {
            for lease in waiting.difference(&served) {
                let message = "other leases of the node need the instances that would be cut";
                memory.block(*lease, CutRefusal::new("mig-in-use", message), self.state.now);
            }
            return None;
        }
        Some(self.apply(memory, layouts, next, waiting))
    }

    /// The wanted instances with those of one more lease.
    fn add(
        &self,
        need: &LeaseNeed,
        wanted: &BTreeMap<usize, Instances>,
        layouts: &[DeviceLayout],
    ) -> Result<BTreeMap<usize, Instances>, CutRefusal> {
        if is_media(&need.profile) {
            return Err(CutRefusal::new(
                "mig-media",
                format!("{}: instances with media extensions are not cut here", need.profile),
            ));
        }
        let mut more = wanted.clone();
        for (device, starts) in &need.devices {
            if !self.is_free(*device, layouts) {
                let message = format!(
                    "device {device} of node {} has no free instance of {} and is in use, or its MIG mode is off: a \
                     device is cut only as a whole",
                    self.state.node.id, need.profile
                );
                return Err(CutRefusal::new("mig-in-use", message));
            }
            let of_device = more.entry(*device).or_default();
            of_device.extend(starts.iter().map(|start| (*start, need.profile.clone())));
            let total = of_device.len();
            let before = wanted.get(device).map_or(0, Instances::len);
            if total != before + starts.len()
                || fill(self.board, of_device, &DeviceLayout::Cut(Instances::new())).is_none()
            {
                let message = format!("device {device} of node {} does not hold these instances", self.state.node.id);
                return Err(CutRefusal::new("mig-in-use", message));
            }
        }
        Ok(more)
    }

    /// The next step back, if one is due.
    fn merge(&self, memory: &mut NodeMemory, layouts: &[DeviceLayout], supply: &Supply) -> Option<CutStep> {
        let (node, now) = (self.state.node, self.state.now);
        if !node.config().starts_with(OWN_PREFIX) {
            memory.empty_since.clear();
            return (!node.before.is_empty()).then_some(CutStep::ForgetBefore);
        }
        // Without it the owner removed the annotation or the configuration: then nobody knows where to return.
        let before = self.layouts(&node.before).ok()?;
        let differs = |device: usize| match (layouts.get(device), before.get(device)) {
            (Some(now), Some(before)) => now.counts() != before.counts(),
            _ => false,
        };
        let is_wanted = |device: usize| self.state.leases.iter().any(|need| need.devices.contains_key(&device));
        let empty: BTreeSet<usize> = (0..layouts.len())
            .filter(|device| differs(*device) && self.is_free(*device, layouts) && !is_wanted(*device))
            .collect();
        memory.empty_since.retain(|device, _| empty.contains(device));
        let mut next = layouts.to_vec();
        let mut is_due = false;
        for device in empty {
            let since = *memory.empty_since.entry(device).or_insert(now);
            if now.saturating_sub(since) >= self.state.settings.empty()
                && let (Some(layout), Some(before)) = (next.get_mut(device), before.get(device))
            {
                layout.clone_from(before);
                is_due = true;
            }
        }
        let may = is_due && memory.failure.is_none() && supply.is_covered_by(&next);
        may.then(|| self.apply(memory, layouts, next, BTreeSet::new()))
    }

    /// Begins a change to the layouts `next`: by the configuration that the node had before, if they are the same.
    fn apply(
        &self,
        memory: &mut NodeMemory,
        layouts: &[DeviceLayout],
        next: Vec<DeviceLayout>,
        leases: BTreeSet<LeaseId>,
    ) -> CutStep {
        let node = self.state.node;
        let counts = node_counts(&next);
        let is_own = node.config().starts_with(OWN_PREFIX);
        let first = if is_own { node.before.as_str() } else { node.config() };
        let returns = is_own && self.layouts(first).is_ok_and(|before| node_counts(&before) == counts);
        let name = if returns { first.to_owned() } else { own_name(&counts) };
        let changed = layouts.iter().zip(&next).filter(|(now, next)| now.counts() != next.counts());
        let unused = changed.flat_map(|(now, _)| now.instances()).map(|(_, profile)| resource(profile)).collect();
        let before = (!is_own || node.before.is_empty()).then(|| first.to_owned()).filter(|name| !name.is_empty());
        memory.empty_since.clear();
        let from = node.config().to_owned();
        let change = BegunChange { from: from.clone(), to: name.clone(), begun: self.state.unix_seconds };
        memory.change = Some(NodeChange::begin(name.clone(), next, Some(from), leases, self.state.now));
        CutStep::Apply(ApplyStep { name, counts: (!returns).then_some(counts), before, change, unused })
    }
}

fn is_media(profile: &str) -> bool {
    profile.contains('+')
}
