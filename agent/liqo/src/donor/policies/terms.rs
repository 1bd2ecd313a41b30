//! The leases in force, in the words of the policies: the ConfigMap's data.
//!
//! | key | value |
//! |---|---|
//! | `version` | of this table |
//! | `liqo-id` | this cluster's own Liqo id |
//! | `peer.<consumer>` | while the consumer has a lease: how its control plane's certificate request must begin |
//! | `slice.<consumer>.<slice>` | how the slice's certificate request must begin, one form for each kind of key |
//! | `user.<credential>` | the consumer that the credential's name belongs to |
//! | `namespace.<credential>` | the namespace at the consumer whose pods the lease is for |
//! | `selector.<credential>` | the lease's node selector: `key=value`, with commas between |
//! | `resources.<credential>` | resource names of the lease that are devices, with commas between |
//! | `counted.<lease>` | for a lease on several nodes: the resource name of its GPUs |

use std::collections::BTreeMap;

use comity_agent_kubernetes::gpu_resource::{LEASE_RESOURCE_PREFIX, counts_gpus};

use crate::donor::csr::{slice_csr_beginnings, slice_user, tenant_csr_beginning};
use crate::donor::grants::{Grants, MAX_GRANTS};

/// Label by which Liqo, and the policies, know the namespaces of a consumer.
pub(crate) const CONSUMER_NAMESPACE_LABEL: &str = crate::REMOTE_CLUSTER_LABEL;
const VERSION: &str = "5";
/// Before the id of a lease whose pods select its nodes by its label.
pub(super) const COUNTED_KEY: &str = "counted.";

/// Data of the ConfigMap. Leases beyond [`MAX_GRANTS`] are left out, and thus refused.
pub(crate) fn terms(liqo_id: &str, grants: &Grants) -> BTreeMap<String, String> {
    let mut data =
        BTreeMap::from([("version".to_owned(), VERSION.to_owned()), ("liqo-id".to_owned(), liqo_id.to_owned())]);
    for (slice, grant) in grants.0.iter().take(MAX_GRANTS) {
        let consumer = &grant.origin_liqo_id;
        let user = slice_user(slice, consumer);
        let selector: Vec<String> = grant.node_selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let devices: Vec<&str> = grant.resources.keys().map(String::as_str).filter(|name| name.contains('/')).collect();
        data.insert(format!("peer.{consumer}"), tenant_csr_beginning(consumer));
        data.insert(format!("slice.{consumer}.{slice}"), slice_csr_beginnings(slice, consumer).join(" "));
        data.insert(format!("selector.{user}"), selector.join(","));
        data.insert(format!("resources.{user}"), devices.join(","));
        data.insert(format!("namespace.{user}"), grant.namespace.clone());
        data.insert(format!("user.{user}"), consumer.clone());
        let lease = grant.node_selector.keys().find_map(|key| key.strip_prefix(LEASE_RESOURCE_PREFIX));
        let gpus = grant.resources.keys().find(|name| counts_gpus(name));
        data.extend(lease.zip(gpus).map(|(lease, gpus)| (format!("{COUNTED_KEY}{lease}"), gpus.clone())));
    }
    data
}
