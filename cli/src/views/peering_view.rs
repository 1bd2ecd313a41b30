//! Peerings: trust and network between two clusters.

use comity_proto::v1;
use comity_types::PeeringState;
use serde::Serialize;

use super::list::Row;
use super::value::{Known, non_empty, non_zero};
use crate::output::{Answer, Column, Sheet, fields};
use crate::units::age;

/// The trust and network relation of an origin and a donor.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Peering {
    /// "peer-N".
    pub id: String,
    /// Origin.
    pub origin: String,
    /// Donor.
    pub donor: String,
    /// `proposed`, `keys`, `authenticating`, `establishing`, `established`, `draining`, `closed`, `failed`.
    pub state: Known<PeeringState>,
    /// Number of handshakes so far.
    pub epoch: u32,
    /// Leases that use it.
    pub leases: Vec<String>,
    /// Round-trip time in microseconds.
    pub rtt_us: Option<u64>,
    /// Deadline of the current handshake step.
    pub deadline_ms: Option<u64>,
    /// Next attempt after a failed handshake.
    pub retry_at_ms: Option<u64>,
    /// Since when no lease uses it.
    pub idle_since_ms: Option<u64>,
    /// Why it failed.
    pub message: Option<String>,
    /// Revision of its last change.
    pub revision: u64,
}

impl From<v1::Peering> for Peering {
    fn from(peering: v1::Peering) -> Self {
        let state = peering.state().try_into().into();
        Self {
            id: peering.id,
            origin: peering.origin,
            donor: peering.donor,
            state,
            epoch: peering.epoch,
            leases: peering.leases,
            rtt_us: non_zero(peering.rtt_us),
            deadline_ms: non_zero(peering.deadline_ms),
            retry_at_ms: non_zero(peering.retry_at_ms),
            idle_since_ms: non_zero(peering.idle_since_ms),
            message: non_empty(peering.message),
            revision: peering.revision,
        }
    }
}

fn rtt_text(us: Option<u64>) -> String {
    us.map_or_else(|| "-".to_owned(), |us| format!("{}.{:03} ms", us / 1_000, us % 1_000))
}

impl Row for Peering {
    const HEADS: &'static [Column] = &[
        Column::text("peering"),
        Column::text("origin"),
        Column::text("donor"),
        Column::state("state"),
        Column::number("epoch").rank(3),
        Column::number("leases").rank(1),
        Column::number("rtt").rank(2),
        Column::message("message").rank(4),
    ];
    const NONE: &'static str = "no peerings: the first lease between two clusters opens one";

    fn key(&self) -> &str {
        &self.id
    }

    fn rows(&self, _now_ms: u64) -> Vec<Vec<String>> {
        vec![vec![
            self.id.clone(),
            self.origin.clone(),
            self.donor.clone(),
            self.state.to_string(),
            self.epoch.to_string(),
            self.leases.len().to_string(),
            rtt_text(self.rtt_us),
            self.message.clone().unwrap_or_default(),
        ]]
    }
}

impl Answer for Peering {
    fn table(&self, now_ms: u64) -> Sheet {
        let at = |time: Option<u64>| time.map(|at| age(at, now_ms)).unwrap_or_default();
        fields(&[
            ("Peering", self.id.clone()),
            ("State", self.state.to_string()),
            ("Message", self.message.clone().unwrap_or_default()),
            ("Origin", self.origin.clone()),
            ("Donor", self.donor.clone()),
            ("Epoch", self.epoch.to_string()),
            ("Leases", self.leases.join(", ")),
            ("Round trip", rtt_text(self.rtt_us)),
            ("Step deadline", at(self.deadline_ms)),
            ("Retry", at(self.retry_at_ms)),
            ("Idle since", at(self.idle_since_ms)),
        ])
    }
}
