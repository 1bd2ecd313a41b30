//! Member clusters.

use comity_proto::v1;
use serde::Serialize;

use super::list::Row;
use super::value::non_zero;
use crate::output::{Answer, Column, Sheet, fields};
use crate::units::{age, format_milli};

/// A member cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Cluster id.
    pub id: String,
    /// Institution that owns it.
    pub institution: String,
    /// Whether its agent is connected.
    pub connected: bool,
    /// When `connected` last changed.
    pub since_ms: Option<u64>,
    /// When it joined.
    pub joined_at_ms: Option<u64>,
    /// Devices in its offer.
    pub devices: u32,
    /// Thousandths of GPUs lent out.
    pub lent_milli: u64,
    /// Thousandths of GPUs borrowed.
    pub borrowed_milli: u64,
    /// Generation of its offer.
    pub offer_generation: u64,
    /// Public identity key.
    pub identity_key: String,
    /// When its newest certificate expires.
    pub certificate_not_after_ms: Option<u64>,
    /// Limit on reclaims for which its local work waits.
    pub reclaim_limited: Option<ReclaimLimited>,
    /// When it was evicted; none for a member.
    pub evicted_at_ms: Option<u64>,
    /// When its institution was suspended; none if it is not.
    pub suspended_at_ms: Option<u64>,
    /// Revision of its last change.
    pub revision: u64,
}

/// A limit on reclaims that makes local work wait.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReclaimLimited {
    /// The limit.
    pub limit: String,
    /// When the next reclaim is allowed; none if never.
    pub until_ms: Option<u64>,
}

impl ReclaimLimited {
    /// For people: `local work waits: maxReclaims of Cluster ncc-main allows the next reclaim in 3h`.
    fn text(&self, now_ms: u64) -> String {
        match self.until_ms {
            Some(until) => {
                format!("local work waits: {} allows the next reclaim {}", self.limit, age(until, now_ms))
            }
            None => format!("local work waits: {} allows no reclaim", self.limit),
        }
    }
}

impl From<v1::Cluster> for Cluster {
    fn from(cluster: v1::Cluster) -> Self {
        Self {
            id: cluster.id,
            institution: cluster.institution,
            connected: cluster.connected,
            since_ms: non_zero(cluster.since_ms),
            joined_at_ms: non_zero(cluster.joined_at_ms),
            devices: cluster.devices,
            lent_milli: cluster.lent_milli,
            borrowed_milli: cluster.borrowed_milli,
            offer_generation: cluster.offer_generation,
            identity_key: cluster.identity_key,
            certificate_not_after_ms: non_zero(cluster.certificate_not_after_ms),
            reclaim_limited: cluster
                .reclaim_limited
                .map(|it| ReclaimLimited { limit: it.limit, until_ms: non_zero(it.until_ms) }),
            evicted_at_ms: non_zero(cluster.evicted_at_ms),
            suspended_at_ms: non_zero(cluster.suspended_at_ms),
            revision: cluster.revision,
        }
    }
}

impl Cluster {
    /// Whether its agent is expected to connect: it is neither evicted nor suspended.
    pub(crate) const fn is_member(&self) -> bool {
        self.evicted_at_ms.is_none() && self.suspended_at_ms.is_none()
    }

    /// Since when it has its state.
    fn state_since_ms(&self) -> u64 {
        self.evicted_at_ms.or(self.suspended_at_ms).or(self.since_ms).unwrap_or(0)
    }

    fn state(&self) -> &'static str {
        match (self.evicted_at_ms, self.suspended_at_ms) {
            (Some(_), _) => "evicted",
            (None, Some(_)) => "suspended",
            (None, None) if self.connected => "connected",
            (None, None) => "silent",
        }
    }
}

impl Row for Cluster {
    const HEADS: &'static [Column] = &[
        Column::text("cluster"),
        Column::text("institution").rank(2),
        Column::state("state"),
        Column::text("since").rank(3),
        Column::number("devices").rank(1),
        Column::number("lent"),
        Column::number("borrowed"),
    ];
    const NONE: &'static str = "no cluster has joined; invite one with 'comity cluster invite CLUSTER'";

    fn key(&self) -> &str {
        &self.id
    }

    fn rows(&self, now_ms: u64) -> Vec<Vec<String>> {
        vec![vec![
            self.id.clone(),
            self.institution.clone(),
            self.state().to_owned(),
            age(self.state_since_ms(), now_ms),
            self.devices.to_string(),
            format_milli(self.lent_milli),
            format_milli(self.borrowed_milli),
        ]]
    }
}

impl Answer for Cluster {
    fn table(&self, now_ms: u64) -> Sheet {
        fields(&[
            ("Cluster", self.id.clone()),
            ("Institution", self.institution.clone()),
            ("State", format!("{}, {}", self.state(), age(self.state_since_ms(), now_ms))),
            ("Joined", age(self.joined_at_ms.unwrap_or(0), now_ms)),
            ("Devices", self.devices.to_string()),
            ("Lent", format_milli(self.lent_milli)),
            ("Borrowed", format_milli(self.borrowed_milli)),
            ("Reclaim-limited", self.reclaim_limited.as_ref().map(|it| it.text(now_ms)).unwrap_or_default()),
            ("Offer", format!("generation {}", self.offer_generation)),
            ("Identity key", self.identity_key.clone()),
            ("Certificate ends", age(self.certificate_not_after_ms.unwrap_or(0), now_ms)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_lasts_since_it_began() {
        let cluster = v1::Cluster { connected: true, since_ms: 10, ..v1::Cluster::default() };
        let since = |cluster: v1::Cluster| {
            let view = Cluster::from(cluster);
            (view.state(), view.state_since_ms())
        };
        assert_eq!(since(cluster.clone()), ("connected", 10));
        assert_eq!(since(v1::Cluster { suspended_at_ms: 20, ..cluster.clone() }), ("suspended", 20));
        assert_eq!(since(v1::Cluster { evicted_at_ms: 30, suspended_at_ms: 20, ..cluster }), ("evicted", 30));
    }
}
