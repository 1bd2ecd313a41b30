//! Leases that are, or would be, reclaimed to make room for a request.

use comity_proto::v1;
use serde::Serialize;

use super::value::{non_empty, non_zero};
use crate::units::{age, format_duration, format_milli};

/// All leases that are, or would be, reclaimed for a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reclaims {
    /// Donor of the leases; if they return quota, where the request will start.
    pub donor: String,
    /// Whether notice was given; false while it is only planned.
    pub given: bool,
    /// Whether the leases migrate elsewhere, rather than yield to a higher priority.
    pub move_aside: bool,
    /// Whether the leases yield because they use borrowed quota that the request needs.
    pub return_quota: bool,
    /// Thousandths of GPUs that they use in total.
    pub gpus_milli: u64,
    /// When the last one ends at the latest; none if all have ended and the donor still cleans up.
    pub until_ms: Option<u64>,
    /// The leases.
    pub leases: Vec<ReclaimedLease>,
}

/// One lease that is, or would be, reclaimed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReclaimedLease {
    /// Its id, if the caller may see it.
    pub lease: Option<String>,
    /// Its tenant, if the caller may see it.
    pub tenant: Option<String>,
    /// Priority class of its request.
    pub priority: Option<String>,
    /// Thousandths of GPUs that it uses.
    pub gpus_milli: u64,
    /// Its notice, in milliseconds.
    pub notice_ms: u64,
    /// When it ends at the latest.
    pub until_ms: Option<u64>,
}

impl From<v1::Reclaims> for Reclaims {
    fn from(reclaims: v1::Reclaims) -> Self {
        let lease = |lease: v1::ReclaimedLease| ReclaimedLease {
            lease: non_empty(lease.lease),
            tenant: non_empty(lease.tenant),
            priority: non_empty(lease.priority),
            gpus_milli: lease.gpus_milli,
            notice_ms: lease.notice_ms,
            until_ms: non_zero(lease.until_ms),
        };
        Self {
            donor: reclaims.donor,
            given: reclaims.given,
            move_aside: reclaims.move_aside,
            return_quota: reclaims.return_quota,
            gpus_milli: reclaims.gpus_milli,
            until_ms: non_zero(reclaims.until_ms),
            leases: reclaims.leases.into_iter().map(lease).collect(),
        }
    }
}

impl Reclaims {
    /// One line for people: number, donor, notice, deadline, and the leases as far as the caller may see them.
    pub(super) fn summary(&self, now_ms: u64) -> String {
        let count = match self.leases.len() {
            1 => "1 lease".to_owned(),
            count => format!("{count} leases"),
        };
        let notice = self.leases.iter().map(|lease| lease.notice_ms).max().unwrap_or(0);
        let how = match (self.given, self.move_aside) {
            (true, false) => "reclaimed".to_owned(),
            (true, true) => "reclaimed to move aside".to_owned(),
            (false, false) => format!("would be reclaimed with {} of notice", format_duration(notice)),
            (false, true) => format!("would move aside within {}", format_duration(notice)),
        };
        let until = match self.until_ms {
            Some(until) => format!("gone {} at the latest", age(until, now_ms)),
            None => "ended, cleanup pending".to_owned(),
        };
        let leases: Vec<String> = self.leases.iter().map(ReclaimedLease::summary).collect();
        let (gpus, leases, donor) = (format_milli(self.gpus_milli), leases.join(", "), &self.donor);
        if self.return_quota {
            return format!(
                "{count} on borrowed quota ({gpus} GPUs) {how}, {until}: {leases}; it starts at {donor} then"
            );
        }
        format!("{count} at {donor} ({gpus} GPUs) {how}, {until}: {leases}")
    }
}

impl ReclaimedLease {
    fn summary(&self) -> String {
        let name = self.lease.as_deref().unwrap_or("a lease");
        let tenant = self.tenant.as_ref().map_or_else(String::new, |tenant| format!(" of {tenant}"));
        let priority = self.priority.as_ref().map_or_else(String::new, |class| format!(", {class}"));
        format!("{name}{tenant} ({} GPUs{priority})", format_milli(self.gpus_milli))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_only_leases_that_the_caller_may_see() {
        let hidden = v1::ReclaimedLease {
            priority: "low".to_owned(),
            gpus_milli: 500,
            notice_ms: 300_000,
            until_ms: 300_000,
            ..v1::ReclaimedLease::default()
        };
        let seen = v1::ReclaimedLease { lease: "lease-7".to_owned(), tenant: "vision".to_owned(), ..hidden.clone() };
        let next = v1::Reclaims {
            donor: "north".to_owned(),
            gpus_milli: 1_000,
            until_ms: 300_000,
            leases: vec![seen, hidden],
            ..v1::Reclaims::default()
        };
        let reclaims = Reclaims::from(next.clone());
        assert_eq!(
            reclaims.summary(0),
            "2 leases at north (1 GPUs) would be reclaimed with 5m of notice, gone in 5m at the latest: \
             lease-7 of vision (0.5 GPUs, low), a lease (0.5 GPUs, low)"
        );
        let json = serde_json::to_value(&reclaims).expect("plain data serialises");
        assert_eq!((&json["leases"][0]["lease"], &json["untilMs"]), (&"lease-7".into(), &300_000.into()));
        assert!(json["leases"][1]["lease"].is_null(), "{json}");
        let returned = Reclaims::from(v1::Reclaims { return_quota: true, ..next.clone() }).summary(0);
        assert!(returned.starts_with("2 leases on borrowed quota (1 GPUs) would be reclaimed"), "{returned}");
        assert!(returned.ends_with("; it starts at north then"), "{returned}");
        let ended = Reclaims::from(v1::Reclaims { given: true, until_ms: 0, ..next });
        assert!(ended.summary(0).contains("reclaimed, ended, cleanup pending"), "{}", ended.summary(0));
    }
}
