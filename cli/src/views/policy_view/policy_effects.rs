//! Effects of a policy bundle.

use comity_proto::v1;
use serde::Serialize;

use crate::output::{Column, Sheet, columns};
use crate::units::format_milli;
use crate::views::value::non_empty;

/// Effects of a bundle. The lists hold the first ones; the counts cover all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyEffects {
    /// Leases that would be reclaimed.
    pub leases: Vec<LeaseEffect>,
    /// Number of those leases.
    pub lease_count: u32,
    /// Waiting requests that policy alone would keep from every donor, or would no longer keep.
    pub requests: Vec<RequestEffect>,
    /// Number of those requests.
    pub request_count: u32,
    /// Waiting requests that were not examined.
    pub requests_unexamined: u32,
    /// Clusters that would lend more or less.
    pub capacities: Vec<CapacityEffect>,
    /// Number of those clusters.
    pub capacity_count: u32,
}

/// A lease that would be reclaimed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseEffect {
    /// Its id.
    pub lease: String,
    /// Its tenant.
    pub tenant: String,
    /// Its donor.
    pub donor: String,
    /// Thousandths of GPUs that it holds.
    pub gpus_milli: u64,
    /// Code of the denial, or name of another reason.
    pub code: String,
}

/// A waiting request whose prospects would change.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestEffect {
    /// Its id.
    pub request: String,
    /// Its tenant.
    pub tenant: String,
    /// Why policy would keep it from every donor; none if policy would no longer do so.
    pub denied: Option<String>,
}

/// A cluster that would lend more or less.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CapacityEffect {
    /// Its id.
    pub cluster: String,
    /// Thousandths of GPUs that it may lend in all under the bundle in force.
    pub before_milli: u64,
    /// The same under the new bundle.
    pub after_milli: u64,
}

impl From<v1::PolicyEffects> for PolicyEffects {
    fn from(effects: v1::PolicyEffects) -> Self {
        let lease = |effect: v1::PolicyLeaseEffect| LeaseEffect {
            lease: effect.lease,
            tenant: effect.tenant,
            donor: effect.donor,
            gpus_milli: effect.gpus_milli,
            code: effect.code,
        };
        let request = |effect: v1::PolicyRequestEffect| RequestEffect {
            request: effect.request,
            tenant: effect.tenant,
            denied: non_empty(effect.denied),
        };
        let capacity = |effect: v1::PolicyCapacityEffect| CapacityEffect {
            cluster: effect.cluster,
            before_milli: effect.before_milli,
            after_milli: effect.after_milli,
        };
        Self {
            leases: effects.leases.into_iter().map(lease).collect(),
            lease_count: effects.lease_count,
            requests: effects.requests.into_iter().map(request).collect(),
            request_count: effects.request_count,
            requests_unexamined: effects.requests_unexamined,
            capacities: effects.capacities.into_iter().map(capacity).collect(),
            capacity_count: effects.capacity_count,
        }
    }
}

impl PolicyEffects {
    /// Whether the bundle changes no lease, waiting request or capacity.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lease_count == 0 && self.request_count == 0 && self.capacity_count == 0
    }

    /// For people: a table for each kind of effect.
    #[must_use]
    pub fn sheet(&self) -> Sheet {
        let lease = |effect: &LeaseEffect| {
            vec![
                effect.lease.clone(),
                effect.tenant.clone(),
                effect.donor.clone(),
                format_milli(effect.gpus_milli),
                effect.code.clone(),
            ]
        };
        let request = |effect: &RequestEffect| {
            let denied = effect.denied.as_ref().map(|reason| format!("denied: {reason}"));
            vec![
                effect.request.clone(),
                effect.tenant.clone(),
                denied.unwrap_or_else(|| "no longer denied by policy".to_owned()),
            ]
        };
        let capacity = |effect: &CapacityEffect| {
            vec![effect.cluster.clone(), format_milli(effect.before_milli), format_milli(effect.after_milli)]
        };
        let leases = table(
            "leases would be reclaimed",
            &[
                Column::text("lease"),
                Column::text("tenant"),
                Column::text("donor"),
                Column::number("gpus"),
                Column::text("reason"),
            ],
            self.leases.iter().map(lease).collect(),
            self.lease_count,
        );
        let requests = table(
            "waiting requests would be denied or allowed",
            &[Column::text("request"), Column::text("tenant"), Column::prose("change")],
            self.requests.iter().map(request).collect(),
            self.request_count,
        );
        let capacities = table(
            "clusters would lend more or less",
            &[Column::text("cluster"), Column::number("gpus before"), Column::number("gpus after")],
            self.capacities.iter().map(capacity).collect(),
            self.capacity_count,
        );
        let mut sheet = leases.then(requests).then(capacities);
        if self.is_empty() {
            sheet = sheet.then("no lease, waiting request or capacity would change");
        }
        if self.requests_unexamined > 0 {
            sheet = sheet.then(format!("{} waiting requests were not examined", self.requests_unexamined));
        }
        sheet
    }
}

/// A headed table of the first of `count` effects; empty if there are none.
fn table(what: &str, heads: &[Column], rows: Vec<Vec<String>>, count: u32) -> Sheet {
    if count == 0 {
        return Sheet::default();
    }
    let more = usize::try_from(count).unwrap_or(usize::MAX).saturating_sub(rows.len());
    let more = if more > 0 { format!("… and {more} more") } else { String::new() };
    Sheet::default().heading(format!("{what}: {count}")).then(columns(heads, rows, "")).then(more).gap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_named_and_counted() {
        let effects = PolicyEffects::from(v1::PolicyEffects {
            leases: vec![v1::PolicyLeaseEffect {
                lease: "lease-7".to_owned(),
                tenant: "poly-ml".to_owned(),
                donor: "ncc-main".to_owned(),
                gpus_milli: 2_500,
                code: "no-agreement".to_owned(),
            }],
            lease_count: 3,
            requests: vec![v1::PolicyRequestEffect {
                request: "req-9".to_owned(),
                tenant: "poly-ml".to_owned(),
                denied: String::new(),
            }],
            request_count: 1,
            requests_unexamined: 4,
            capacities: vec![v1::PolicyCapacityEffect {
                cluster: "ncc-main".to_owned(),
                before_milli: 16_000,
                after_milli: 8_000,
            }],
            capacity_count: 1,
        });
        assert_eq!(
            effects.sheet().to_string(),
            "leases would be reclaimed: 3\n\
             LEASE    TENANT   DONOR     GPUS  REASON\n\
             lease-7  poly-ml  ncc-main   2.5  no-agreement\n\
             … and 2 more\n\n\
             waiting requests would be denied or allowed: 1\n\
             REQUEST  TENANT   CHANGE\n\
             req-9    poly-ml  no longer denied by policy\n\n\
             clusters would lend more or less: 1\n\
             CLUSTER   GPUS BEFORE  GPUS AFTER\n\
             ncc-main           16           8\n\n\
             4 waiting requests were not examined\n"
        );
        assert!(!effects.is_empty());
        assert_eq!(
            PolicyEffects::default().sheet().to_string(),
            "no lease, waiting request or capacity would change\n"
        );
    }
}
