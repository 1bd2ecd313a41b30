//! What goes into the log and what comes out of applying it.

use serde::{Deserialize, Serialize};

use crate::apply::command::Command;
use crate::model::reply::{Actor, Idempotency};
use crate::model::time::Timestamp;

/// Version of [`LogEnvelope`]. A broker refuses to start over entries of a later one.
///
/// Format 2 adds `deliveries` to offers, delivery `virtual-node` to requests, `network` to key bundles and the steps of
/// Liqo's key exchange. Format 3 adds priority, `not_before` and `start_by` to requests, `overdue` and `slots` to
/// placements, and `layout` to MIG devices, and what is held is kept account of. Format 4 adds the commands
/// `revise-offer`, `reclaim-leases` and `checkpoint-lease`, wiring to nodes and devices of offers, to requests what
/// they ask of it, members and `preemptible`, and to placements what they take of wiring. Format 5 adds `spread_donors`
/// to requests, `more` and `aim` to placements, to reasons for calling a lease back `repair`, to devices of offers what
/// is wrong with them, to nodes whether they answer and which virtual functions carry their networks, to placements
/// those that they take, to data what was measured of lines, reasons for which leases are being reclaimed or end when
/// nodes and devices fail, that failures are remembered, the command `rebase-time`, and to `begin-term` how long the
/// outage before it was. Entries of earlier formats are read: what they do not say was so for all of them.
pub const LOG_FORMAT: u16 = 5;
/// Format from which on what is held is kept account of: what earlier entries do must not depend on the release that
/// reads them, for a broker may have them from its log or from a snapshot.
pub(crate) const FAIRNESS_SINCE: u16 = 3;

/// Format from which on failures of nodes and devices are remembered, for the same reason.
pub(crate) const HEALTH_SINCE: u16 = 5;

/// One log entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogEnvelope {
    /// [`LOG_FORMAT`].
    pub format: u16,
    /// Who proposed it.
    pub actor: Actor,
    /// When, as the leader's log clock had it; apply adds what re-bases have shifted, and clamps the sum so that log
    /// time never goes back.
    pub time: Timestamp,
    /// W3C traceparent of the work that led to it; empty if none.
    pub traceparent: String,
    /// Set on calls of clients.
    pub idempotency: Option<Idempotency>,
    /// What to do.
    pub command: Command,
}
