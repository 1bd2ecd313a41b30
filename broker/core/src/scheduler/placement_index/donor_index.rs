//! One donor's nodes, brought up to date by what changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::collections::interner::{Digest, Interner, digest_of};
use crate::feasibility::fit::Wanted;
use crate::feasibility::snapshot::Snapshot;
use crate::model::id::{ClassName, ClusterId, NodeId};
use crate::model::inventory::Node;
use crate::scheduler::packing::Shape;
use crate::scheduler::placement_index::all_nodes::AllNodes;
use crate::scheduler::placement_index::lay_out::free;
use crate::state::occupancy::NodeOccupancy;

/// One donor's nodes. Those with devices of several kinds, or with MIG instances, are left to [`fit`](crate::scheduler::placement_index::fit).
#[derive(Clone, Debug)]
pub(crate) struct DonorIndex {
    /// Of the pool.
    pub(crate) number: u32,
    /// Of the offer.
    generation: Option<u64>,
    /// Thousandths that it lends, as far as it is brought up to date.
    pub(crate) lent_milli: u64,
    /// Nodes by number, in the order of their names.
    names: Interner<NodeId>,
    /// Of nodes in the pool, by number.
    shapes: Vec<Option<Shape>>,
    /// Changes of what is lent that are taken in.
    seen: u64,
    /// What the last plan took, which may not have come to be.
    taken: Vec<Note>,
    /// Classes of devices on nodes that are not in the pool, by node.
    elsewhere: BTreeMap<u32, BTreeSet<ClassName>>,
    /// On how many such nodes there are devices of a class.
    classes_elsewhere: BTreeMap<ClassName, usize>,
}

/// A change of a node: in the order in which they are looked at, by node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Note {
    node: u32,
    /// Whether it came to be; else the last plan took it.
    is: bool,
    /// Which one of them.
    at: usize,
    /// The fingerprint of what is lent of the node then; `None`: the node may be another.
    lent: Option<u64>,
}

impl DonorIndex {
    /// A pack that knows no node yet.
    pub(crate) fn at(number: u32) -> Self {
        Self {
            number,
            generation: None,
            lent_milli: 0,
            names: Interner::default(),
            shapes: Vec::new(),
            seen: 0,
            taken: Vec::new(),
            elsewhere: BTreeMap::new(),
            classes_elsewhere: BTreeMap::new(),
        }
    }

    /// Brings nodes up to date that changed since the last time: those of which something was lent or given back, or
    /// that the donor offers otherwise.
    pub(crate) fn catch_up(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, all_nodes: &mut AllNodes) {
        let Some(offer) = snapshot.state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref()) else { return };
        let changes = snapshot.changes(donor);
        self.lent_milli = snapshot.lent_milli(donor);
        let before = self.generation.replace(offer.generation);
        let recent = before.and_then(|before| Some((before == offer.generation, changes.since(self.seen)?)));
        self.seen = changes.count();
        let mut notes = std::mem::take(&mut self.taken);
        let all_known = recent.map(|(same_offer, recent)| {
            let mut known = recent.enumerate().map(|(at, change)| {
                let node = self.names.id_of(&change.node)?;
                notes.push(Note { node, is: true, at, lent: change.lent });
                Some(())
            });
            (same_offer, known.all(|known| known.is_some()))
        });
        let Some((same_offer, true)) = all_known else { return self.start_over(snapshot, donor, all_nodes) };
        notes.sort_unstable();
        for of_node in notes.chunk_by(|one, other| one.node == other.node) {
            let number = of_node[0].node;
            match (came_to_be(of_node), same_offer) {
                (true, _) => {}
                (false, true) => self.update(snapshot, donor, all_nodes, number),
                (false, false) => self.take_node(snapshot, donor, all_nodes, number),
            }
        }
    }

    /// Takes all nodes as the offer has them now: by their names they have their numbers, and who is as good as another
    /// is taken by number.
    fn start_over(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, all_nodes: &mut AllNodes) {
        let offer = snapshot.state.clusters.get(donor).and_then(|cluster| cluster.offer.as_ref());
        let nodes = offer.map(|offer| &offer.nodes);
        if !nodes.is_some_and(|nodes| nodes.keys().eq(self.names.values())) {
            all_nodes.states.clear(self.number);
            self.names = Interner::default();
            nodes.into_iter().flat_map(|nodes| nodes.keys()).for_each(|id| _ = self.names.intern_ref(id));
            self.shapes = vec![None; self.names.len()];
            self.elsewhere.clear();
            self.classes_elsewhere.clear();
        }
        for number in 0..u32::try_from(self.names.len()).unwrap_or(u32::MAX) {
            self.take_node(snapshot, donor, all_nodes, number);
        }
    }

    /// Takes a node as the offer has it now; costs stay known unless it came, went or became another.
    fn take_node(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, all_nodes: &mut AllNodes, number: u32) {
        for class in self.elsewhere.remove(&number).into_iter().flatten() {
            if let Some(count) = self.classes_elsewhere.get_mut(&class) {
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
                    *self.classes_elsewhere.entry(class.clone()).or_default() += 1;
                }
                self.elsewhere.insert(number, classes);
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

    /// Counts in what `snapshot` has taken of a node.
    pub(crate) fn take(&mut self, snapshot: &Snapshot<'_>, donor: &ClusterId, all_nodes: &mut AllNodes, id: &NodeId) {
        let known = snapshot.number_looked_at(donor, id);
        let Some(number) = known.or_else(|| self.names.id_of(id)) else { return };
        self.update(snapshot, donor, all_nodes, number);
        let lent = snapshot.occupancy(donor, id).map(NodeOccupancy::fingerprint);
        self.taken.push(Note { node: number, is: false, at: self.taken.len(), lent });
    }

    /// The name of a node.
    pub(crate) fn name(&self, number: u32) -> &NodeId {
        &self.names.values()[number as usize]
    }

    /// A node by its number here, with its name.
    pub(crate) fn node<'v>(
        &self,
        snapshot: &Snapshot<'v>,
        donor: &ClusterId,
        number: u32,
    ) -> Option<(&'v NodeId, &'v Node)> {
        let offer = snapshot.state.clusters.get(donor)?.offer.as_ref()?;
        // All nodes of the offer are known here. Where no more are known, they have the same numbers.
        if offer.nodes.len() == self.names.len() {
            return snapshot.node_numbered(donor, number);
        }
        let (id, _) = offer.nodes.get_indexed(offer.nodes.find_index(self.name(number)).ok()?)?;
        Some((id, snapshot.node(donor, id)?))
    }

    /// Whether nothing but the pool could serve: then what does not fit there fits nowhere.
    pub(crate) fn is_all(&self, wanted: &Wanted<'_>) -> bool {
        (wanted.gpus.count == 1 || wanted.topology.same_node) && !self.is_elsewhere(wanted.class)
    }

    /// Whether nodes that are not in the pool have devices of `class`.
    pub(crate) fn is_elsewhere(&self, class: &ClassName) -> bool {
        !self.classes_elsewhere.is_empty() && self.classes_elsewhere.get(class).is_some_and(|count| *count > 0)
    }

    fn update(&self, snapshot: &Snapshot<'_>, donor: &ClusterId, all_nodes: &mut AllNodes, number: u32) {
        let Some((id, node)) = self.node(snapshot, donor, number) else { return };
        all_nodes.states.update(self.number, number, free(node, snapshot.occupancy(donor, id)));
    }
}

/// Whether a node is as the last plan left it: then it is counted in already.
fn came_to_be(notes: &[Note]) -> bool {
    let last = |is: bool| notes.iter().rev().find(|note| note.is == is).and_then(|note| note.lent);
    notes.iter().all(|note| note.lent.is_some()) && last(false).is_some() && last(false) == last(true)
}

impl Digest for NodeId {
    fn digest(&self) -> u64 {
        let words = self.as_str().as_bytes().chunks(8);
        digest_of(words.map(|word| word.iter().fold(0, |all, &byte| all << 8 | u64::from(byte))))
    }
}
