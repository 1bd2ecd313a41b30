//! Who leads, who may stand for election, and when a leader hands over.

pub(crate) mod contact;
pub(crate) mod election_gate;
pub(crate) mod failover;
pub(crate) mod follow_leadership;
pub(crate) mod leadership;
pub(crate) mod slow_disk;
mod wrong_clock;

use std::time::Duration;

/// Minimum interval between two transfers of leadership for the same reason. If the reason applies to all brokers,
/// leadership must not rotate without end.
const HAND_OVER_INTERVAL: Duration = Duration::from_secs(30);
