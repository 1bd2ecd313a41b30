//! Data derived from offers: device classes, counts of equal devices, and sums. Updated incrementally.

use std::collections::BTreeMap;

use comity_policy::DeviceFacts;
use comity_types::{ClassName, ClusterId, NodeId};

use crate::model::amounts::Amounts;
use crate::model::cluster::Cluster;
use crate::model::health::Health;
use crate::model::inventory::{Device, Node};
use crate::model::limits::WHOLE_MILLI;
use crate::model::policy_record::PolicyRecord;
use crate::state::Derived;
use crate::state::timers::Due;

/// Number of devices per class and attributes.
pub(crate) type DeviceCounts = BTreeMap<(ClassName, DeviceFacts), u64>;

/// Assigns classes to devices. Evaluates each distinct set of attributes once, so that the scheduler never evaluates
/// CEL.
struct Classifier<'a> {
    policy: &'a PolicyRecord,
    known: BTreeMap<DeviceFacts, (Option<ClassName>, u64)>,
    last: Option<Last<'a>>,
}

/// The most recent device. Neighbouring devices are usually equal, so this avoids most lookups.
struct Last<'a> {
    device: &'a Device,
    facts: DeviceFacts,
    class: Option<ClassName>,
    times: u64,
}

impl<'a> Classifier<'a> {
    fn new(policy: &'a PolicyRecord) -> Self {
        Self { policy, known: BTreeMap::new(), last: None }
    }

    fn class_of(&mut self, device: &'a Device) -> Option<ClassName> {
        if let Some(last) = self.last.as_mut().filter(|last| last.device.is_like(device)) {
            last.times += 1;
            return last.class.clone();
        }
        self.flush_last();
        let facts = device.facts();
        let class = self.known.get(&facts).map(|(class, _)| class.clone()).unwrap_or_else(|| {
            let class = self.policy.bundle.class_of(&facts);
            class.and_then(|class| ClassName::parse(class, "class").ok())
        });
        self.last = Some(Last { device, facts, class: class.clone(), times: 1 });
        class
    }

    fn flush_last(&mut self) {
        if let Some(Last { facts, class, times, .. }) = self.last.take() {
            self.known.entry(facts).or_insert((class, 0)).1 += times;
        }
    }

    /// Number of classified devices per class and attributes.
    fn into_counts(mut self) -> DeviceCounts {
        self.flush_last();
        self.known.into_iter().filter_map(|(facts, (class, times))| Some(((class?, facts), times))).collect()
    }
}

impl Derived {
    /// Updates everything derived from a cluster's whole offer and failure records.
    pub(crate) fn note_offer(&mut self, id: &ClusterId, cluster: &Cluster, policy: Option<&PolicyRecord>) {
        self.occupancy.note_offer(id);
        self.timers.set(Due::Health(id.clone()), cluster.health.due());
        self.usable.remove(id);
        let offer = cluster.offer.as_ref();
        let mut holds = Amounts::default();
        for (node, has) in offer.into_iter().flat_map(|offer| &offer.nodes) {
            self.note_usable(id, node, Some(has), cluster.health.node(node));
            holds = holds.plus(lendable(self.usable_view(id, node).unwrap_or(has)));
        }
        self.note_capacity(id, self.capacities.get(id).copied().unwrap_or_default(), holds);
        self.cluster_sums.set_offer(id, offer.map(AsRef::as_ref));
        let (Some(offer), Some(policy)) = (offer, policy) else {
            self.classes.remove(id);
            self.device_counts.remove(id);
            return;
        };
        let mut classifier = Classifier::new(policy);
        let mut nodes = BTreeMap::new();
        for (node, has) in &offer.nodes {
            nodes.insert(node.clone(), has.devices.iter().map(|device| classifier.class_of(device)).collect());
        }
        self.classes.insert(id.clone(), nodes);
        self.device_counts.insert(id.clone(), classifier.into_counts());
    }

    /// Updates everything derived from one node that changed, was added (`before` is `None`) or was removed (`after` is
    /// `None`).
    pub(crate) fn note_node(
        &mut self,
        id: &ClusterId,
        node: &NodeId,
        before: Option<&Node>,
        after: Option<&Node>,
        health: &Health,
        policy: Option<&PolicyRecord>,
    ) {
        self.occupancy.note_node(id, node);
        let holds = |of: &Self, has: Option<&Node>| of.usable_view(id, node).or(has).map(lendable).unwrap_or_default();
        let held = holds(self, before);
        self.note_usable(id, node, after, health.node(node));
        self.note_capacity(id, held, holds(self, after));
        self.cluster_sums.note_node(id, before, after);
        let Some(policy) = policy else { return };
        let alike = before.zip(after).is_some_and(|(before, after)| {
            before.devices.len() == after.devices.len()
                && before.devices.iter().zip(&after.devices).all(|(before, after)| before.is_like(after))
        });
        if alike {
            return;
        }
        let classes = self.classes.entry(id.clone()).or_default();
        let counts = self.device_counts.entry(id.clone()).or_default();
        let mut classifier = Classifier::new(policy);
        for device in before.into_iter().flat_map(|node| &node.devices) {
            classifier.class_of(device);
        }
        for (key, times) in classifier.into_counts() {
            if let Some(count) = counts.get_mut(&key) {
                *count = count.saturating_sub(times);
                if *count == 0 {
                    counts.remove(&key);
                }
            }
        }
        let Some(after) = after else {
            classes.remove(node);
            return;
        };
        let mut classifier = Classifier::new(policy);
        classes.insert(node.clone(), after.devices.iter().map(|device| classifier.class_of(device)).collect());
        for (key, times) in classifier.into_counts() {
            *counts.entry(key).or_default() += times;
        }
    }

    /// The usable view of a node, if it is less than the offered node.
    fn usable_view(&self, id: &ClusterId, node: &NodeId) -> Option<&Node> {
        self.usable.get(id)?.get(node)
    }

    /// Replaces a part `before` of a cluster's lendable capacity with `after`.
    fn note_capacity(&mut self, id: &ClusterId, before: Amounts, after: Amounts) {
        let held = self.capacities.remove(id).unwrap_or_default();
        let holds = held.minus(before).plus(after);
        self.capacity = self.capacity.minus(before).plus(after);
        if !holds.is_zero() {
            self.capacities.insert(id.clone(), holds);
        }
    }
}

/// Lendable capacity of a node: healthy devices minus local use, or nothing if the node is unschedulable.
pub(crate) fn lendable(node: &Node) -> Amounts {
    if !node.schedulable {
        return Amounts::default();
    }
    let devices = node.devices.iter().filter(|device| device.healthy);
    let free = devices.map(|device| u64::from(WHOLE_MILLI.saturating_sub(device.local_use_milli)));
    Amounts {
        gpu_milli: free.sum(),
        cpu_milli: node.cpu_milli.saturating_sub(node.local_cpu_milli),
        memory_mib: node.memory_mib.saturating_sub(node.local_memory_mib),
    }
}
