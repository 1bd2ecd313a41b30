//! What donors grant to virtual nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::Records;

/// What one lease's virtual node may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Liqo cluster id of the origin: nobody else gets it.
    pub origin_liqo_id: String,
    /// Amounts by resource name, as Kubernetes writes them.
    pub resources: BTreeMap<String, String>,
    /// Labels of the nodes that its pods may run on.
    pub node_selector: BTreeMap<String, String>,
    /// Labels that the virtual node shows.
    pub node_labels: BTreeMap<String, String>,
}

/// Every grant in force, by lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants(pub BTreeMap<String, Grant>);

impl Grants {
    /// What the records say: the same before and after a restart.
    #[must_use]
    pub fn of(records: &Records) -> Self {
        let in_force = records.donors.values().filter(|record| !record.removed);
        Self(in_force.filter_map(|record| Some((record.lease.clone(), record.grant.clone()?))).collect())
    }
}
