//! What is ill, kept beside the broker, and how long what failed too often is to be left alone: arithmetic of its own.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::inventory::{Fault, FaultClass};
use comity_core::lease::Lease;
use comity_core::reclaim::ReclaimReason;
use comity_core::{ClusterId, NodeId};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// A donor that is silent for so long is given up.
pub(super) const DONOR_LOST_AFTER: u64 = 30 * MINUTE;

/// A donor's node.
pub(super) type Place = (ClusterId, NodeId);

/// Something that is not as it should be and may get well.
#[derive(Clone, Debug)]
pub(super) enum Broken {
    Device(Place, usize),
    NotReady(Place),
    Gone(Place),
    Silent(ClusterId),
}

/// How often a device fell lately.
#[derive(Debug, Default)]
struct Falls {
    at: Vec<u64>,
    times: u32,
    until: u64,
    last: u64,
}

/// Everything that is not as it should be.
#[derive(Debug, Default)]
pub(super) struct Truth {
    pub(super) faults: BTreeMap<(Place, usize), FaultClass>,
    pub(super) not_ready: BTreeSet<Place>,
    pub(super) gone: BTreeMap<Place, u64>,
    pub(super) silent: BTreeMap<ClusterId, u64>,
    falls: BTreeMap<(Place, usize), Falls>,
    node_falls: BTreeMap<Place, Falls>,
}

impl Falls {
    /// More than three falls within an hour: ten minutes, then twice as long each time, a day at most; forgotten after
    /// a day.
    fn fall(&mut self, now: u64) {
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

impl Truth {
    /// What could get well; of a donor that is silent, that alone.
    pub(super) fn broken(&self) -> Vec<Broken> {
        let heard = |place: &&Place| !self.silent.contains_key(&place.0);
        let devices = self.faults.keys().filter(|(place, _)| heard(&place));
        let devices = devices.map(|(place, index)| Broken::Device(place.clone(), *index));
        let not_ready = self.not_ready.iter().filter(heard).cloned().map(Broken::NotReady);
        let gone = self.gone.keys().filter(heard).cloned().map(Broken::Gone);
        devices.chain(not_ready).chain(gone).chain(self.silent.keys().cloned().map(Broken::Silent)).collect()
    }

    /// What its agent says of a device.
    pub(super) fn fault(&self, place: &Place, index: usize) -> Option<Fault> {
        let class = *self.faults.get(&(place.clone(), index))?;
        Some(Fault { class, message: "XID".to_owned() })
    }

    /// A device fell ill that was well, on a node that answers.
    pub(super) fn falls(&mut self, place: &Place, index: usize, now: u64) {
        self.falls.entry((place.clone(), index)).or_default().fall(now);
    }

    /// A node stopped answering.
    pub(super) fn node_falls(&mut self, place: &Place, now: u64) {
        self.node_falls.entry(place.clone()).or_default().fall(now);
    }

    /// Whether a device is left alone for failing too often, or its node is.
    pub(super) fn is_quarantined(&self, place: &Place, index: usize, now: u64) -> bool {
        self.falls.get(&(place.clone(), index)).is_some_and(|falls| now < falls.until)
            || self.node_falls.get(place).is_some_and(|falls| now < falls.until)
    }

    /// Whether a device itself is not to be used.
    pub(super) fn is_ill(&self, place: &Place, index: usize) -> bool {
        self.faults.get(&(place.clone(), index)).is_some_and(|class| class.withdraws())
    }

    /// Whether something may be placed on a device.
    pub(super) fn is_well(&self, place: &Place, index: usize, now: u64) -> bool {
        !self.is_ill(place, index)
            && !self.is_quarantined(place, index, now)
            && !self.not_ready.contains(place)
            && !self.gone.contains_key(place)
            && !self.silent.contains_key(&place.0)
    }

    /// Whether a lease has what is said to have failed, and that did fail.
    pub(super) fn fails(&self, lease: &Lease, reason: &ReclaimReason, now: u64) -> bool {
        let donor = &lease.placement.donor;
        match reason {
            ReclaimReason::DeviceFailed { node, device, .. } => {
                let (place, index) = ((donor.clone(), node.clone()), *device as usize);
                let has = lease.placement.nodes.get(node).is_some_and(|part| part.devices.contains_key(device));
                has && (self.is_ill(&place, index) || self.is_quarantined(&place, index, now))
            }
            ReclaimReason::NodeFailed { node, gone } => {
                let place = (donor.clone(), node.clone());
                let is_gone = || self.gone.get(&place).is_some_and(|since| now - since >= MINUTE);
                let kept_out = || self.node_falls.get(&place).is_some_and(|falls| now < falls.until);
                let fails = if *gone { is_gone() } else { self.not_ready.contains(&place) || kept_out() };
                lease.placement.nodes.contains_key(node) && fails
            }
            ReclaimReason::DonorSilent => self.silent.get(donor).is_some_and(|since| now - since >= DONOR_LOST_AFTER),
            ReclaimReason::LocalNeed
            | ReclaimReason::PolicyChanged { .. }
            | ReclaimReason::Preempted { .. }
            | ReclaimReason::Repair { .. } => false,
        }
    }
}
