//! The cluster's own limits on borrowing. The origin's agent enforces them even against the broker.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{DONOR_REFUSED, LOCAL_POLICY};
use serde::{Deserialize, Serialize};

use super::is_allowed;
use super::peer_lists::PeerLists;

/// Local borrowing limits, as the configuration file says them under `borrowing`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BorrowingPolicy {
    /// Whether this cluster borrows at all.
    pub enabled: bool,
    /// Clusters that may lend to this one; empty: any.
    pub allowed_donors: BTreeSet<String>,
    /// Clusters that may not, whatever else is allowed.
    pub denied_donors: BTreeSet<String>,
    /// Institutions that may lend; empty: any.
    pub allowed_institutions: BTreeSet<String>,
    /// Institutions that may not, whatever else is allowed.
    pub denied_institutions: BTreeSet<String>,
    /// Tenants whose leases are accepted; empty: any.
    pub allowed_tenants: BTreeSet<String>,
    /// The only clusters that may lend for a namespace of this cluster; a namespace that is not here: any allowed
    /// donor.
    pub namespace_donors: BTreeMap<String, BTreeSet<String>>,
}

impl Default for BorrowingPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            allowed_donors: BTreeSet::new(),
            denied_donors: BTreeSet::new(),
            allowed_institutions: BTreeSet::new(),
            denied_institutions: BTreeSet::new(),
            allowed_tenants: BTreeSet::new(),
            namespace_donors: BTreeMap::new(),
        }
    }
}

/// A borrowed lease, as far as the policy checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BorrowingTerms<'a> {
    /// Cluster that lends.
    pub donor: &'a str,
    /// Its institution; empty if the broker did not say.
    pub institution: &'a str,
    /// Tenant charged.
    pub tenant: &'a str,
    /// Namespace on this cluster for its kubeconfig or pods.
    pub namespace: &'a str,
}

/// Why the cluster does not borrow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BorrowingRefusal {
    /// [`DONOR_REFUSED`] if another donor may be accepted, else [`LOCAL_POLICY`].
    pub code: &'static str,
    /// A sentence for the operator of the other cluster, naming the setting behind it.
    pub message: String,
}

impl BorrowingRefusal {
    fn of_donor(message: String) -> Self {
        Self { code: DONOR_REFUSED, message }
    }

    fn of_all(message: String) -> Self {
        Self { code: LOCAL_POLICY, message }
    }
}

impl BorrowingPolicy {
    /// Checks whether leases of a donor could be accepted at all; otherwise it gets no tunnel.
    ///
    /// # Errors
    /// [`BorrowingRefusal`].
    pub fn check_peer(&self, donor: &str, institution: &str) -> Result<(), BorrowingRefusal> {
        if !self.enabled {
            let message = "this cluster does not borrow now (borrowing.enabled is false)";
            return Err(BorrowingRefusal::of_all(message.to_owned()));
        }
        let lists = PeerLists {
            section: "borrowing",
            relation: "borrow from",
            others: "Donors",
            allowed: &self.allowed_donors,
            denied: &self.denied_donors,
            allowed_institutions: &self.allowed_institutions,
            denied_institutions: &self.denied_institutions,
        };
        lists.check(donor, institution).map_err(BorrowingRefusal::of_donor)
    }

    /// Checks whether a lease may be accepted.
    ///
    /// # Errors
    /// [`BorrowingRefusal`].
    pub fn check(&self, terms: &BorrowingTerms<'_>) -> Result<(), BorrowingRefusal> {
        let BorrowingTerms { donor, institution, tenant, namespace } = *terms;
        if !is_allowed(&self.allowed_tenants, tenant) {
            let message = format!("this cluster does not borrow for tenant {tenant:?} (borrowing.allowedTenants)");
            return Err(BorrowingRefusal::of_all(message));
        }
        self.check_peer(donor, institution)?;
        match self.namespace_donors.get(namespace) {
            Some(donors) if !donors.contains(donor) => Err(BorrowingRefusal::of_donor(format!(
                "this cluster does not borrow from cluster {donor} for namespace {namespace} \
                 (borrowing.namespaceDonors)"
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: BorrowingTerms<'_> =
        BorrowingTerms { donor: "north", institution: "poly", tenant: "vision", namespace: "team-a" };

    fn names(name: &str) -> BTreeSet<String> {
        BTreeSet::from([name.to_owned()])
    }

    #[test]
    fn each_limit_refuses_by_its_name() {
        let default = BorrowingPolicy::default;
        let of_namespace = |donor| BTreeMap::from([("team-a".to_owned(), names(donor))]);
        let limits = [
            (BorrowingPolicy { enabled: false, ..default() }, "borrowing.enabled"),
            (BorrowingPolicy { denied_donors: names("north"), ..default() }, "borrowing.deniedDonors"),
            (BorrowingPolicy { allowed_donors: names("south"), ..default() }, "borrowing.allowedDonors"),
            (BorrowingPolicy { denied_institutions: names("poly"), ..default() }, "borrowing.deniedInstitutions"),
            (BorrowingPolicy { allowed_institutions: names("uni"), ..default() }, "borrowing.allowedInstitutions"),
            (BorrowingPolicy { allowed_tenants: names("speech"), ..default() }, "borrowing.allowedTenants"),
            (BorrowingPolicy { namespace_donors: of_namespace("south"), ..default() }, "borrowing.namespaceDonors"),
        ];
        for (policy, field) in limits {
            let refused = policy.check(&TERMS).expect_err(field);
            assert!(refused.message.contains(field), "{refused}");
            let concerns_all = matches!(field, "borrowing.enabled" | "borrowing.allowedTenants");
            let code = if concerns_all { LOCAL_POLICY } else { DONOR_REFUSED };
            assert_eq!(refused.code, code, "{refused}");
        }
        let allowed = BorrowingPolicy {
            allowed_donors: names("north"),
            allowed_institutions: names("poly"),
            allowed_tenants: names("vision"),
            namespace_donors: of_namespace("north"),
            ..default()
        };
        assert_eq!(allowed.check(&TERMS), Ok(()));
        assert_eq!(default().check(&TERMS), Ok(()));
        assert!(allowed.check(&BorrowingTerms { institution: "", ..TERMS }).is_err(), "it is not known");
        let of_another = BorrowingPolicy { namespace_donors: of_namespace("south"), ..default() };
        assert_eq!(of_another.check(&BorrowingTerms { namespace: "team-b", ..TERMS }), Ok(()));
    }
}
