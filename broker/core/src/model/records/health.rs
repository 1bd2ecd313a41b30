//! Recent failures of a donor's nodes and devices, and the quarantines of those that fail repeatedly.
//!
//! A device that recovers is lent again at once. But a device that fails more than [`TOLERATED_FAILURES`] times within
//! [`WINDOW`] is quarantined, whatever its cluster reports, because work placed on it would soon be reclaimed. Each
//! further quarantine lasts twice as long. If a cluster only counts unhealthy devices (Kubernetes does not say which of
//! a node's devices are unhealthy), a device is known by its index alone.

use std::collections::BTreeMap;

use comity_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::model::inventory::{Device, Node, Offer};
use crate::model::time::{Millis, Timestamp};

/// Failures within [`WINDOW`] without consequences: a reset or two, and a restart of the device plugin.
pub const TOLERATED_FAILURES: usize = 3;
/// Failures that are further apart are unrelated.
pub const WINDOW: Millis = Millis::from_hours(1);
/// Length of the first quarantine; each further one lasts twice as long.
pub const FIRST_QUARANTINE: Millis = Millis::from_mins(10);
/// Longest quarantine: people look once a day at a part that still fails.
pub const LONGEST_QUARANTINE: Millis = Millis::from_hours(24);
/// The memory of a failure ends after this time without another one.
pub const FORGOTTEN_AFTER: Millis = Millis::from_hours(24);
/// How long a node must be missing from an offer to count as gone: labels and plugins come and go with restarts.
pub const GONE_AFTER: Millis = Millis::from_mins(1);
/// Failure records per donor, the most recent ones: enough for the devices of 100 large servers.
pub const MAX_FAILURE_RECORDS: usize = 1_024;

/// The failures of one node or device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// Recent failures, oldest first, each within [`WINDOW`] of the latest. A quarantine clears the list.
    pub fell: Vec<Timestamp>,
    /// End of its quarantine, if it is in one.
    pub until: Option<Timestamp>,
    /// Whether its cluster identified it when it last failed. Otherwise the cluster only counts unhealthy devices, and
    /// this is one of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub named: bool,
    /// Number of quarantines in a row.
    pub times: u32,
    /// The latest failure, or the end of the latest quarantine.
    pub last: Timestamp,
}

/// The failures of one node and its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeHealth {
    /// The node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<FailureRecord>,
    /// Devices by index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<u32, FailureRecord>,
    /// Since when it is missing from the offer although it holds leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<Timestamp>,
}

/// The failures of one donor, by node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Health {
    nodes: BTreeMap<NodeId, NodeHealth>,
}

/// Precision of a cluster's report on a failed part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Knowledge {
    /// The cluster says which part failed.
    Identified,
    /// The cluster only counts failed devices.
    Counted,
}

impl Knowledge {
    fn of(device: &Device) -> Self {
        if device.fault.is_some() { Self::Identified } else { Self::Counted }
    }
}

impl FailureRecord {
    /// Records a failure; starts a quarantine if there were too many.
    fn record_failure(&mut self, knowledge: Knowledge, now: Timestamp) {
        self.named = knowledge == Knowledge::Identified;
        self.fell.retain(|at| now.since(*at) < WINDOW);
        self.fell.push(now);
        self.last = self.last.max(now);
        if self.fell.len() <= TOLERATED_FAILURES {
            return;
        }
        self.fell.clear();
        let doubled = FIRST_QUARANTINE.0 << self.times.min(16);
        self.times = self.times.saturating_add(1);
        let until = now.after(Millis(doubled.min(LONGEST_QUARANTINE.0)));
        self.until = self.until.max(Some(until));
        self.last = self.last.max(until);
    }

    /// When its quarantine ends or the record expires.
    fn due(&self) -> Timestamp {
        self.until.unwrap_or(self.last.after(FORGOTTEN_AFTER))
    }
}

impl NodeHealth {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn records(&self) -> impl Iterator<Item = &FailureRecord> {
        self.node.iter().chain(self.devices.values())
    }

    /// End of the node's quarantine.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.node.as_ref().and_then(|record| record.until)
    }

    /// End of a device's quarantine.
    #[must_use]
    pub fn device_until(&self, index: u32) -> Option<Timestamp> {
        self.devices.get(&index).and_then(|record| record.until)
    }

    /// Whether a device is quarantined that its cluster identified as the failed one.
    pub(crate) fn quarantines_identified(&self, index: u32) -> bool {
        self.devices.get(&index).is_some_and(|record| record.named && record.until.is_some())
    }
}

impl Health {
    /// The failures of a node, if there are any.
    #[must_use]
    pub fn node(&self, id: &NodeId) -> Option<&NodeHealth> {
        self.nodes.get(id)
    }

    /// Nodes with failures, by id.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeId, &NodeHealth)> {
        self.nodes.iter()
    }

    /// Records failures that a changed node reports. Adding or removing a node is not a failure.
    pub(crate) fn note_node(&mut self, id: &NodeId, before: Option<&Node>, after: Option<&Node>, now: Timestamp) {
        let (Some(before), Some(after)) = (before, after) else { return };
        let mut failed: Vec<(Option<u32>, Knowledge)> = Vec::new();
        if before.ready && !after.ready {
            failed.push((None, Knowledge::Identified));
        }
        // While a node is not ready, its devices report nothing new.
        if before.ready && after.ready {
            let devices = (0_u32..).zip(before.devices.iter().zip(&after.devices));
            let newly_failed =
                devices.filter(|(_, (before, after))| before.healthy && !after.healthy && before.is_like(after));
            failed.extend(newly_failed.map(|(index, (_, after))| (Some(index), Knowledge::of(after))));
        }
        if failed.is_empty() {
            return;
        }
        let remembered = self.nodes.entry(id.clone()).or_default();
        for (part, knowledge) in failed {
            let record = match part {
                None => remembered.node.get_or_insert_default(),
                Some(index) => remembered.devices.entry(index).or_default(),
            };
            record.record_failure(knowledge, now);
        }
    }

    /// Records which of `nodes` are missing from an offer although they hold leases. An empty offer means that the
    /// cluster cannot see its nodes or does not lend, not that all nodes are gone.
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
        self.evict_oldest();
    }

    fn evict_oldest(&mut self) {
        let count: usize = self.nodes.values().map(|remembered| remembered.records().count()).sum();
        if count <= MAX_FAILURE_RECORDS {
            return;
        }
        let mut lasts: Vec<Timestamp> =
            self.nodes.values().flat_map(NodeHealth::records).map(|record| record.last).collect();
        lasts.sort_unstable();
        let oldest = lasts[count - MAX_FAILURE_RECORDS];
        let mut excess = count - MAX_FAILURE_RECORDS;
        let mut goes = |record: &FailureRecord| {
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
        self.nodes.values().flat_map(NodeHealth::records).map(FailureRecord::due).min()
    }

    /// Ends quarantines that are over and drops expired records. Returns the nodes whose quarantine, or a device's
    /// quarantine, ended.
    pub(crate) fn expire(&mut self, now: Timestamp) -> Vec<NodeId> {
        let mut freed = Vec::new();
        for (id, remembered) in &mut self.nodes {
            let mut is_over = |record: &mut FailureRecord| {
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

    /// Shifts all timestamps after a re-base of log time.
    pub(crate) fn shift(&mut self, ms: i64) {
        let Self { nodes } = self;
        for NodeHealth { node, devices, gone_since } in nodes.values_mut() {
            for FailureRecord { fell, until, named: _, times: _, last } in node.iter_mut().chain(devices.values_mut()) {
                for time in fell.iter_mut().chain(until).chain([last]) {
                    *time = time.shifted(ms);
                }
            }
            *gone_since = gone_since.map(|since| since.shifted(ms));
        }
    }

    /// Whether there are no failures.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}
