//! What is remembered of a donor's nodes and devices that failed: how often lately, and until when those that fail
//! again and again are kept out.
//!
//! A device that is well once more is lent once more, at once; but one that falls ill for the [`MOST_FALLS`]th time and
//! once again within [`WINDOW`] is kept out for a while that doubles each time, whatever its cluster says of it: what
//! is placed on it would be reclaimed soon. A device that a cluster only counts (Kubernetes does not say which of a
//! node's devices are not healthy) is known by its number alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::id::NodeId;
use crate::model::inventory::{Node, Offer};
use crate::model::time::{Millis, Timestamp};

/// Falls within [`WINDOW`] that nothing follows from: a reset or two and a restart of the device plugin.
pub const MOST_FALLS: usize = 3;
/// Falls that are further apart have nothing to do with one another.
pub const WINDOW: Millis = Millis::from_hours(1);
/// How long a part is kept out for the first time; each further time twice as long.
pub const FIRST_QUARANTINE: Millis = Millis::from_mins(10);
/// Longest time: a part that still fails then is looked at by people once a day.
pub const LONGEST_QUARANTINE: Millis = Millis::from_hours(24);
/// After so long without a fall a part is as good as any.
pub const FORGOTTEN_AFTER: Millis = Millis::from_hours(24);
/// How long a node must be missing from an offer before it counts as gone: labels and plugins come and go with
/// restarts.
pub const GONE_AFTER: Millis = Millis::from_mins(1);
/// Parts of one donor that are remembered, those that fell last: devices of a hundred large servers.
pub const MAX_RECORDS: usize = 1_024;

/// What is remembered of one node or device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When it fell ill within [`WINDOW`] of the last time, oldest first; those that led to a quarantine are not in it.
    pub fell: Vec<Timestamp>,
    /// Until when it is kept out.
    pub until: Option<Timestamp>,
    /// Whether its cluster said what was wrong with it when it last fell; else it only counts devices, and this is one
    /// of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub named: bool,
    /// How many times in a row it was kept out.
    pub times: u32,
    /// When anything of this last happened.
    pub last: Timestamp,
}

/// What is remembered of one node and its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHealth {
    /// The node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Record>,
    /// Devices by index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<u32, Record>,
    /// Since when it is missing from the offer though leases lie on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<Timestamp>,
}

/// What is remembered of one donor, by node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Health {
    nodes: BTreeMap<NodeId, NodeHealth>,
}

impl Record {
    /// It fell ill.
    fn falls(&mut self, named: bool, now: Timestamp) {
        self.named = named;
        self.fell.retain(|at| now.since(*at) < WINDOW);
        self.fell.push(now);
        self.last = self.last.max(now);
        if self.fell.len() <= MOST_FALLS {
            return;
        }
        self.fell.clear();
        let doubled = FIRST_QUARANTINE.0 << self.times.min(16);
        self.times = self.times.saturating_add(1);
        let until = now.after(Millis(doubled.min(LONGEST_QUARANTINE.0)));
        self.until = self.until.max(Some(until));
        self.last = self.last.max(until);
    }

    /// When the next thing happens to it by itself.
    fn due(&self) -> Timestamp {
        self.until.unwrap_or(self.last.after(FORGOTTEN_AFTER))
    }
}

impl NodeHealth {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn records(&self) -> impl Iterator<Item = &Record> {
        self.node.iter().chain(self.devices.values())
    }

    /// Until when the node is kept out.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.node.as_ref().and_then(|record| record.until)
    }

    /// Until when a device is kept out.
    #[must_use]
    pub fn device_until(&self, index: u32) -> Option<Timestamp> {
        self.devices.get(&index).and_then(|record| record.until)
    }

    /// Whether a device is kept out that its cluster knows to be the one that failed.
    pub(crate) fn bars_named(&self, index: u32) -> bool {
        self.devices.get(&index).is_some_and(|record| record.named && record.until.is_some())
    }
}

impl Health {
    /// What is remembered of a node, if anything is.
    #[must_use]
    pub fn node(&self, id: &NodeId) -> Option<&NodeHealth> {
        self.nodes.get(id)
    }

    /// Nodes of which something is remembered, by id.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeId, &NodeHealth)> {
        self.nodes.iter()
    }

    /// Takes in that a node is offered otherwise. A node that comes, or goes, is no node that falls ill.
    pub(crate) fn note_node(&mut self, id: &NodeId, before: Option<&Node>, after: Option<&Node>, now: Timestamp) {
        let (Some(before), Some(after)) = (before, after) else { return };
        let mut falls: Vec<(Option<u32>, bool)> = Vec::new();
        if before.ready && !after.ready {
            falls.push((None, true));
        }
        // While a node is not ready nothing that is said of its devices is new.
        if before.ready && after.ready {
            let devices = (0_u32..).zip(before.devices.iter().zip(&after.devices));
            let fell = devices.filter(|(_, (before, after))| before.healthy && !after.healthy && before.is_like(after));
            falls.extend(fell.map(|(index, (_, after))| (Some(index), after.fault.is_some())));
        }
        if falls.is_empty() {
            return;
        }
        let remembered = self.nodes.entry(id.clone()).or_default();
        for (part, named) in falls {
            let record = match part {
                None => remembered.node.get_or_insert_default(),
                Some(index) => remembered.devices.entry(index).or_default(),
            };
            record.falls(named, now);
        }
    }

    /// Takes in which of `nodes` are missing from an offer though leases lie on them. An offer without any node says
    /// that the cluster cannot see or lend, not that all of it is gone.
    pub(crate) fn note_gone<'n>(
        &mut self,
        offer: &Offer,
        nodes: impl Iterator<Item = &'n NodeId>,
        is_lent: impl Fn(&NodeId) -> bool,
        now: Timestamp,
    ) {
        for (id, remembered) in &mut self.nodes {
            if offer.nodes.is_empty() || offer.nodes.contains_key(id) || !is_lent(id) {
                remembered.gone_since = None;
            }
        }
        if !offer.nodes.is_empty() {
            for id in nodes.filter(|id| is_lent(id) && !offer.nodes.contains_key(*id)) {
                self.nodes.entry(id.clone()).or_default().gone_since.get_or_insert(now);
            }
        }
        self.nodes.retain(|_, remembered| !remembered.is_empty());
        self.keep_to_bound();
    }

    fn keep_to_bound(&mut self) {
        let count: usize = self.nodes.values().map(|remembered| remembered.records().count()).sum();
        if count <= MAX_RECORDS {
            return;
        }
        let mut lasts: Vec<Timestamp> =
            self.nodes.values().flat_map(NodeHealth::records).map(|record| record.last).collect();
        lasts.sort_unstable();
        let oldest = lasts[count - MAX_RECORDS];
        let mut excess = count - MAX_RECORDS;
        let mut goes = |record: &Record| {
            let goes = excess > 0 && record.last <= oldest;
            excess -= usize::from(goes);
            goes
        };
        for remembered in self.nodes.values_mut() {
            if remembered.node.as_ref().is_some_and(&mut goes) {
                remembered.node = None;
            }
            remembered.devices.retain(|_, record| !goes(record));
        }
        self.nodes.retain(|_, remembered| !remembered.is_empty());
    }

    /// When the next quarantine ends or the next record is forgotten.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.nodes.values().flat_map(NodeHealth::records).map(Record::due).min()
    }

    /// Ends quarantines that are over and forgets what was long ago. The nodes of which parts may be used again.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Vec<NodeId> {
        let mut freed = Vec::new();
        for (id, remembered) in &mut self.nodes {
            let mut is_over = |record: &mut Record| {
                if record.due() > now {
                    return false;
                }
                if record.until.take().is_some() {
                    freed.push(id.clone());
                    return false;
                }
                true
            };
            if remembered.node.as_mut().is_some_and(&mut is_over) {
                remembered.node = None;
            }
            remembered.devices.retain(|_, record| !is_over(record));
        }
        self.nodes.retain(|_, remembered| !remembered.is_empty());
        freed.dedup();
        freed
    }

    /// Log time was re-based.
    pub(crate) fn shift(&mut self, ms: i64) {
        let Self { nodes } = self;
        for NodeHealth { node, devices, gone_since } in nodes.values_mut() {
            for Record { fell, until, named: _, times: _, last } in node.iter_mut().chain(devices.values_mut()) {
                for time in fell.iter_mut().chain(until).chain([last]) {
                    *time = time.shifted(ms);
                }
            }
            *gone_since = gone_since.map(|since| since.shifted(ms));
        }
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}
