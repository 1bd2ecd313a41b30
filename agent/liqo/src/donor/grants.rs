//! Grants of leases in force, for the class controller and the policies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::tenant_namespace_of;

/// Most leases in force: their terms must fit one ConfigMap of 1 MiB.
pub const MAX_GRANTS: usize = 750;

/// The grant of one lease by virtual node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Liqo id of the borrowing cluster.
    pub origin_liqo_id: String,
    /// The namespace there whose pods the lease is for.
    pub namespace: String,
    /// Amounts by resource name, as Kubernetes writes quantities.
    pub resources: BTreeMap<String, String>,
    /// Labels that a node must have for pods of the lease.
    pub node_selector: BTreeMap<String, String>,
    /// Labels of the virtual node on the origin.
    pub node_labels: BTreeMap<String, String>,
}

/// All grants in force by the name of their ResourceSlice. Must be complete before it is published, because a slice
/// without an entry is granted nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(pub BTreeMap<String, Grant>);

impl Grants {
    /// The grant of a ResourceSlice, by name, if its namespace and consumer are the grant's origin.
    #[must_use]
    pub fn of_slice(&self, namespace: &str, name: &str, consumer: &str) -> Option<&Grant> {
        let grant = self.0.get(name)?;
        (grant.origin_liqo_id == consumer && namespace == tenant_namespace_of(consumer)).then_some(grant)
    }
}
