//! What is lent now, as the class controller and the policies need it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::liqo::tenant_namespace_of;

/// Most leases in force at a time: their terms have to fit one ConfigMap of 1 MiB.
pub const MAX_GRANTS: usize = 800;

/// One lease of delivery `virtual-node`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Liqo id of the cluster that borrows.
    pub origin_liqo_id: String,
    /// Amounts by resource name, as Kubernetes writes quantities.
    pub resources: BTreeMap<String, String>,
    /// Labels that a node must have for pods of the lease.
    pub node_selector: BTreeMap<String, String>,
    /// Labels of the virtual node on the origin.
    pub node_labels: BTreeMap<String, String>,
}

/// All leases in force, by the name of the ResourceSlice that stands for them. Whoever publishes them must know them
/// all before the first is read: what is not in here is granted nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(pub BTreeMap<String, Grant>);

impl Grants {
    /// The lease that a ResourceSlice stands for: by its name, if it lies where its origin's slices lie and says so.
    #[must_use]
    pub fn of_slice(&self, namespace: &str, name: &str, consumer: &str) -> Option<&Grant> {
        let grant = self.0.get(name)?;
        (grant.origin_liqo_id == consumer && namespace == tenant_namespace_of(consumer)).then_some(grant)
    }
}
