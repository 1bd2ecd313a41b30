//! The list of failures, and the expected quarantine of flapping hardware, computed independently of the broker.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::inventory::{Fault, FaultClass};
use comity_core::lease::Lease;
use comity_core::reclaim::ReclaimReason;
use comity_types::{ClusterId, NodeId};

use crate::time::{DAY, HOUR, MINUTE};

/// The broker gives up a donor after this silence, in milliseconds.
pub(super) const DONOR_LOST_AFTER: u64 = 30 * MINUTE;

/// A donor's node.
pub(super) type Place = (ClusterId, NodeId);

/// A failure that can be undone.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    Device(Place, usize),
    NotReady(Place),
    Gone(Place),
    Silent(ClusterId),
}

/// Recent failures of one device or node, and its quarantine; times in milliseconds.
#[derive(Debug, Default)]
struct FaultHistory {
    at: Vec<u64>,
    times: u32,
    until: u64,
    last: u64,
}

/// All current failures.
#[derive(Debug, Default)]
pub(super) struct GroundTruth {
    pub(super) faults: BTreeMap<(Place, usize), FaultClass>,
    pub(super) not_ready: BTreeSet<Place>,
    pub(super) gone: BTreeMap<Place, u64>,
    pub(super) silent: BTreeMap<ClusterId, u64>,
    device_faults: BTreeMap<(Place, usize), FaultHistory>,
    node_faults: BTreeMap<Place, FaultHistory>,
}

impl FaultHistory {
    /// Records a failure. More than three within an hour quarantine for ten minutes, then twice as long each time up to
    /// a day; a day without failures resets the history.
    fn record(&mut self, now: u64) {
        if now >= self.last.saturating_add(DAY) {
            *self = Self::default();
        }
        self.at.retain(|at| now - at < HOUR);
        self.at.push(now);
        if self.at.len() > 3 {
            let pause = (0..self.times.min(8)).fold(10 * MINUTE, |pause, _| 2 * pause).min(DAY);
            *self = Self { at: Vec::new(), times: self.times + 1, until: self.until.max(now + pause), last: 0 };
        }
        self.last = self.last.max(now).max(self.until);
    }
}

impl GroundTruth {
    /// Failures that can be undone; of a silent donor, only its silence.
    pub(super) fn failures(&self) -> Vec<Failure> {
        let heard = |place: &&Place| !self.silent.contains_key(&place.0);
        let devices = self.faults.keys().filter(|(place, _)| heard(&place));
        let devices = devices.map(|(place, index)| Failure::Device(place.clone(), *index));
        let not_ready = self.not_ready.iter().filter(heard).cloned().map(Failure::NotReady);
        let gone = self.gone.keys().filter(heard).cloned().map(Failure::Gone);
        devices.chain(not_ready).chain(gone).chain(self.silent.keys().cloned().map(Failure::Silent)).collect()
    }

    /// The fault that the agent reports for a device.
    pub(super) fn fault(&self, place: &Place, index: usize) -> Option<Fault> {
        let class = *self.faults.get(&(place.clone(), index))?;
        Some(Fault { class, message: "XID".to_owned() })
    }

    /// Records the failure of a healthy device on a node that answers.
    pub(super) fn record_device_fault(&mut self, place: &Place, index: usize, now: u64) {
        self.device_faults.entry((place.clone(), index)).or_default().record(now);
    }

    /// Records that a node stopped answering.
    pub(super) fn record_node_fault(&mut self, place: &Place, now: u64) {
        self.node_faults.entry(place.clone()).or_default().record(now);
    }

    /// Whether a device or its node is quarantined.
    pub(super) fn is_quarantined(&self, place: &Place, index: usize, now: u64) -> bool {
        self.device_faults.get(&(place.clone(), index)).is_some_and(|history| now < history.until)
            || self.node_faults.get(place).is_some_and(|history| now < history.until)
    }

    /// Whether the device itself is failed.
    pub(super) fn is_failed(&self, place: &Place, index: usize) -> bool {
        self.faults.get(&(place.clone(), index)).is_some_and(|class| class.withdraws())
    }

    /// Whether a lease may be placed on a device.
    pub(super) fn is_usable(&self, place: &Place, index: usize, now: u64) -> bool {
        !self.is_failed(place, index)
            && !self.is_quarantined(place, index, now)
            && !self.not_ready.contains(place)
            && !self.gone.contains_key(place)
            && !self.silent.contains_key(&place.0)
    }

    /// Whether `reason` names hardware that the lease uses and that did fail.
    pub(super) fn fails(&self, lease: &Lease, reason: &ReclaimReason, now: u64) -> bool {
        let donor = &lease.placement.donor;
        match reason {
            ReclaimReason::DeviceFailed { node, device, .. } => {
                let (place, index) = ((donor.clone(), node.clone()), *device as usize);
                let has = lease.placement.nodes.get(node).is_some_and(|part| part.devices.contains_key(device));
                has && (self.is_failed(&place, index) || self.is_quarantined(&place, index, now))
            }
            ReclaimReason::NodeFailed { node, gone } => {
                let place = (donor.clone(), node.clone());
                let is_gone = || self.gone.get(&place).is_some_and(|since| now - since >= MINUTE);
                let kept_out = || self.node_faults.get(&place).is_some_and(|history| now < history.until);
                let fails = if *gone { is_gone() } else { self.not_ready.contains(&place) || kept_out() };
                lease.placement.nodes.contains_key(node) && fails
            }
            ReclaimReason::DonorSilent => self.silent.get(donor).is_some_and(|since| now - since >= DONOR_LOST_AFTER),
            ReclaimReason::LocalNeed
            | ReclaimReason::PolicyChanged { .. }
            | ReclaimReason::Preempted { .. }
            | ReclaimReason::Migration { .. }
            | ReclaimReason::BorrowedQuota { .. }
            | ReclaimReason::Revoked { .. }
            | ReclaimReason::UserRevoked { .. } => false,
        }
    }
}
