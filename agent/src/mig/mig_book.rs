//! What is known of the MIG devices that the agent may cut.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::LeaseId;

use super::device_layout::DeviceLayout;

/// Layouts by node, and the progress of leases. Empty before the first round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigBook {
    /// Whether a first round is complete.
    pub is_complete: bool,
    /// Nodes that the agent may cut, by name.
    pub nodes: BTreeMap<String, NodeBook>,
    /// Leases of MIG instances that have slots.
    pub leases: BTreeMap<LeaseId, LeaseCut>,
}

/// What is known of one node's devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeBook {
    /// The layout of every device, by index.
    Known(Vec<BookedDevice>),
    /// The layouts are unknown, and instances are lent by number. One sentence.
    Unknown(String),
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookedDevice {
    /// Its instances.
    pub layout: DeviceLayout,
    /// Starts of instances that leases hold.
    pub leased: BTreeSet<u8>,
    /// Whether it may be cut unless local work uses one of its profiles.
    pub may_cut: bool,
}

/// Whether a lease's instances exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseCut {
    /// They do.
    Ready,
    /// Not yet. For the agent's log.
    Waiting(String),
    /// They will not.
    Refused(CutRefusal),
}

/// Why a lease gets no instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutRefusal {
    /// Stable code.
    pub code: &'static str,
    /// For people; reaches the broker.
    pub message: String,
}

impl CutRefusal {
    /// A refusal with a code of docs/errors.md.
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl LeaseCut {
    /// The worse of two: a lease may be on several nodes.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Refused(refusal), _) | (_, Self::Refused(refusal)) => Self::Refused(refusal),
            (Self::Waiting(reason), _) | (_, Self::Waiting(reason)) => Self::Waiting(reason),
            (Self::Ready, Self::Ready) => Self::Ready,
        }
    }
}
