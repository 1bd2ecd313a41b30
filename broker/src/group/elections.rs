//! Who leads, who may stand for election, and when a leader hands over.

pub(crate) mod contact;
pub(crate) mod election_gate;
pub(crate) mod failover;
pub(crate) mod follow_leadership;
pub(crate) mod leadership;
pub(crate) mod slow_disk;
mod wrong_clock;
