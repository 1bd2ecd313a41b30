//! One donor's part of the placement index, updated by differences.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{ClassName, ClusterId, NodeId};

use crate::collections::interner::{Digest, Interner, digest_of};
use crate::feasibility::fit::Wanted;
use crate::feasibility::snapshot::Snapshot;
use crate::model::inventory::Node;
use crate::scheduler::packing::Shape;
use crate::scheduler::placement_index::all_nodes::AllNodes;
use crate::scheduler::placement_index::lay_out::free;
use crate::state::occupancy::NodeOccupancy;

/// One donor's nodes. Nodes with several device kinds or with MIG instances stay unindexed;
/// [`fit`](crate::scheduler::placement_index::fit) scans those.
#[derive(Clone, Debug)]
pub(crate) struct DonorIndex {
    /// The donor's number in the state index.
    pub(crate) number: u32,
    /// Generation of the offer at the last sync.
    generation: Option<u64>,
    /// Thousandths of devices that it lends, as of the last update.
    pub(crate) lent_milli: u64,
    /// Node names by number, in alphabetical order.
    names: Interner<NodeId>,
    /// By node number; `None` where unindexed.
    shapes: Vec<Option<Shape>>,
    /// Changes of occupancy read so far.
    changes_seen: u64,
    /// Changes that the last plan made, which may not have been applied.
    planned: Vec<IndexedChange>,
    /// Device classes on unindexed nodes, by node number.
    unindexed_classes: BTreeMap<u32, BTreeSet<ClassName>>,
    /// Number of unindexed nodes with devices of a class.
    unindexed_nodes: BTreeMap<ClassName, usize>,
}

/// Where a change of a node comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ChangeSource {
    /// The last plan made it, without knowing whether it would be applied.
    Plan,
    /// The state contains it.
    State,
}

/// A change of a node. Sorts by node, then by source, then by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct IndexedChange {
    node: u32,
    source: ChangeSource,
    /// Position among the changes of one source.
    at: usize,
    /// Fingerprint of the node's occupancy after the change; `None` if the node itself may have changed.
    lent: Option<u64>,
}

impl DonorIndex {
    /// An index without nodes.
    pub(crate) fn empty(number: u32) -> Self {
        Self {
            number,
            generation: None,
            lent_milli: 0,
            names: Interner::default(),
            shapes: Vec::new(),
            changes_seen: 0,
            planned: Vec::new(),
            unindexed_classes: BTreeMap::new(),
            unindexed_nodes: BTreeMap::new(),
        }
    }

    /// Updates the nodes whose occupancy or offer changed since the last sync.
    pub(crate) fn sync(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, all_nodes: &mut AllNodes) {
        let Some(offer) = snapshot.state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref()) else { return };
        let changes = snapshot.changes(donor);
        self.lent_milli = snapshot.lent_milli(donor);
        let before = self.generation.replace(offer.generation);
        let recent = before.and_then(|before| Some((before == offer.generation, changes.since(self.changes_seen)?)));
        self.changes_seen = changes.count();
        let mut node_changes = std::mem::take(&mut self.planned);
        let all_known = recent.map(|(same_offer, recent)| {
            let mut known = recent.enumerate().map(|(at, change)| {
                let node = self.names.id_of(&change.node)?;
                node_changes.push(IndexedChange { node, source: ChangeSource::State, at, lent: change.lent });
                Some(())
            });
            (same_offer, known.all(|known| known.is_some()))
        });
        let Some((same_offer, true)) = all_known else { return self.rebuild(snapshot, donor, all_nodes) };
        node_changes.sort_unstable();
        for of_node in node_changes.chunk_by(|one, other| one.node == other.node) {
            let number = of_node[0].node;
            match (matches_last_plan(of_node), same_offer) {
                (true, _) => {}
                (false, true) => self.refresh_free(snapshot, donor, all_nodes, number),
                (false, false) => self.reload_node(snapshot, donor, all_nodes, number),
            }
        }
    }

    /// Reloads all nodes of the offer. Node numbers follow their names, because ties are decided by number.
    fn rebuild(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, all_nodes: &mut AllNodes) {
        let offer = snapshot.state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref());
        let nodes = offer.map(|offer| &offer.nodes);
        if !nodes.is_some_and(|nodes| nodes.keys().eq(self.names.values())) {
            all_nodes.states.clear(self.number);
            self.names = Interner::default();
            nodes.into_iter().flat_map(|nodes| nodes.keys()).for_each(|id| _ = self.names.intern_ref(id));
            self.shapes = vec![None; self.names.len()];
            self.unindexed_classes.clear();
            self.unindexed_nodes.clear();
        }
        for number in 0..u32::try_from(self.names.len()).unwrap_or(u32::MAX) {
            self.reload_node(snapshot, donor, all_nodes, number);
        }
    }

    /// Reloads one node of the offer. Cached costs survive unless the node appeared, vanished or changed its shape.
    fn reload_node(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, all_nodes: &mut AllNodes, number: u32) {
        for class in self.unindexed_classes.remove(&number).into_iter().flatten() {
            if let Some(count) = self.unindexed_nodes.get_mut(&class) {
                *count = count.saturating_sub(1);
            }
        }
        let id = self.name(number);
        let node = self.node(snapshot, donor, number).map(|(_, node)| node);
        let classes = snapshot.state.device_classes(donor, id);
        let Some((node, kind)) = node.and_then(|node| Some((node, all_nodes.kind_of(node, classes)?))) else {
            if self.shapes[number as usize].take().is_some() {
                all_nodes.states.remove(self.number, number);
            }
            if node.is_some() {
                let classes: BTreeSet<ClassName> = classes.iter().flatten().cloned().collect();
                for class in &classes {
                    *self.unindexed_nodes.entry(class.clone()).or_default() += 1;
                }
                self.unindexed_classes.insert(number, classes);
            }
            return;
        };
        let devices = u16::try_from(node.devices.len()).unwrap_or(u16::MAX);
        let shape = Shape { cpu_milli: node.cpu_milli, memory_mib: node.memory_mib, devices, kind };
        let free = free(node, snapshot.occupancy(donor, id));
        if self.shapes[number as usize].as_ref() == Some(&shape) {
            all_nodes.states.update(self.number, number, free);
        } else {
            all_nodes.states.set(self.number, number, &shape, free);
            self.shapes[number as usize] = Some(shape);
        }
    }

    /// Records that the current plan changed a node to its occupancy in `snapshot`.
    pub(crate) fn record_planned(
        &mut self,
        snapshot: &Snapshot<'_>,
        donor: &ClusterId,
        all_nodes: &mut AllNodes,
        id: &NodeId,
    ) {
        let known = snapshot.cached_number(donor, id);
        let Some(number) = known.or_else(|| self.names.id_of(id)) else { return };
        self.refresh_free(snapshot, donor, all_nodes, number);
        let lent = snapshot.occupancy(donor, id).map(NodeOccupancy::fingerprint);
        self.planned.push(IndexedChange { node: number, source: ChangeSource::Plan, at: self.planned.len(), lent });
    }

    pub(crate) fn name(&self, number: u32) -> &NodeId {
        &self.names.values()[number as usize]
    }

    /// Finds a node, with its name, by its number in this index.
    pub(crate) fn node<'v>(
        &self,
        snapshot: &Snapshot<'v>,
        donor: &ClusterId,
        number: u32,
    ) -> Option<(&'v NodeId, &'v Node)> {
        let offer = snapshot.state.clusters.get(donor)?.offer.as_ref()?;
        // Every node of the offer is known here. If no others are known, the numbers are the same.
        if offer.nodes.len() == self.names.len() {
            return snapshot.node_numbered(donor, number);
        }
        let (id, _) = offer.nodes.get_indexed(offer.nodes.find_index(self.name(number)).ok()?)?;
        Some((id, snapshot.node(donor, id)?))
    }

    /// Whether the index covers every node that could serve the demand: then what does not fit here fits nowhere.
    pub(crate) fn indexes_all_candidates(&self, wanted: &Wanted<'_>) -> bool {
        (wanted.gpus.count == 1 || wanted.topology.same_node) && !self.has_unindexed(wanted.class)
    }

    /// Whether unindexed nodes have devices of `class`.
    pub(crate) fn has_unindexed(&self, class: &ClassName) -> bool {
        !self.unindexed_nodes.is_empty() && self.unindexed_nodes.get(class).is_some_and(|count| *count > 0)
    }

    fn refresh_free(&self, snapshot: &Snapshot<'_>, donor: &ClusterId, all_nodes: &mut AllNodes, number: u32) {
        let Some((id, node)) = self.node(snapshot, donor, number) else { return };
        all_nodes.states.update(self.number, number, free(node, snapshot.occupancy(donor, id)));
    }
}

/// Whether the state left a node exactly as the last plan did: then the index is up to date already.
fn matches_last_plan(node_changes: &[IndexedChange]) -> bool {
    let last = |source: ChangeSource| {
        node_changes.iter().rev().find(|change| change.source == source).and_then(|change| change.lent)
    };
    let planned = last(ChangeSource::Plan);
    node_changes.iter().all(|change| change.lent.is_some()) && planned.is_some() && planned == last(ChangeSource::State)
}

impl Digest for NodeId {
    fn digest(&self) -> u64 {
        let words = self.as_str().as_bytes().chunks(8);
        digest_of(words.map(|word| word.iter().fold(0, |all, &byte| all << 8 | u64::from(byte))))
    }
}
