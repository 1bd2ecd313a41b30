//! The log entry, and the versions of its format.

use serde::{Deserialize, Serialize};

use crate::apply::command::Command;
use crate::model::reply::{Actor, Idempotency};
use crate::model::time::Timestamp;

/// Version of [`LogEnvelope`]. A broker refuses to start on entries of a later version.
///
/// Format 2 adds `deliveries` to offers, delivery `virtual-node` to requests, `network` to key bundles, and the steps
/// of Liqo's key exchange.
///
/// Format 3 adds priority, `not_before` and `start_by` to requests, `overdue` and `slots` to placements, `layout` to
/// MIG devices, and the accounting of use.
///
/// Format 4 adds the commands `revise-offer`, `reclaim-leases` and `checkpoint-lease`; wiring to nodes, devices,
/// requests and placements; and members and `preemptible` to requests.
///
/// Format 5 adds `spread_donors` to requests, `more` and `aim` to placements, the reclaim reason `repair`, faults to
/// devices, `ready` and virtual functions to nodes, the virtual functions in use to placements, measured bandwidth to
/// data sites, reclaim and end reasons for failed nodes and devices, the memory of failures, the command `rebase-time`,
/// and the outage to `begin-term`.
///
/// Entries of earlier formats remain readable: a missing field takes the value that all entries of that format implied.
pub const LOG_FORMAT: u16 = 5;
/// First format whose entries account for use. Earlier entries must have the same effect under every release, because a
/// broker may take them from its log or from a snapshot.
pub(crate) const FAIRNESS_SINCE: u16 = 3;

/// First format whose entries record failures of nodes and devices, for the same reason.
pub(crate) const HEALTH_SINCE: u16 = 5;

/// One log entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogEnvelope {
    /// [`LOG_FORMAT`].
    pub format: u16,
    /// Who proposed the command.
    pub actor: Actor,
    /// The leader's log clock at the proposal. Apply adds `time_shift_ms` and keeps log time from going back.
    pub time: Timestamp,
    /// W3C traceparent of the proposer's span; empty if none.
    pub traceparent: String,
    /// Present on calls from clients.
    pub idempotency: Option<Idempotency>,
    /// The command to apply.
    pub command: Command,
}
