//! Checks the section `rdma` of the agent's configuration.

use std::collections::BTreeSet;

use comity_agent_kubernetes::gpu_resource::{all_known, is_extended};
use comity_agent_model::settings::SettingChecks;

use crate::observe::RdmaResource;
use crate::observe::wiring::{MAX_GBITS, check_name};

/// Most resources: a cluster has a few kinds of adapters.
const MAX_RDMA_RESOURCES: usize = 64;
/// Longest name of a resource in bytes: a domain of 253, a slash and a name of 63.
const MAX_RESOURCE_BYTES: usize = 317;

pub(super) fn check(resources: &[RdmaResource], has_kubernetes: bool, checks: &mut SettingChecks) {
    if !has_kubernetes && !resources.is_empty() {
        let reason = "without kubernetes nothing counts functions; write rdma at the nodes of the inventory file";
        checks.refuse("rdma", resources.len(), reason);
    }
    if resources.len() > MAX_RDMA_RESOURCES {
        checks.refuse("rdma", resources.len(), format!("list at most {MAX_RDMA_RESOURCES} resources"));
    }
    let gpus = all_known([]);
    let mut seen = BTreeSet::new();
    for RdmaResource { resource, network, gbits } in resources.iter().take(MAX_RDMA_RESOURCES) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        if !is_extended(resource) || resource.len() > MAX_RESOURCE_BYTES || !resource.bytes().all(plain) {
            let reason = "write the name by which nodes count the functions, as in nvidia.com/ib_vf";
            checks.refuse("rdma.resource", resource, reason);
        } else if gpus.contains(resource) {
            checks.refuse("rdma.resource", resource, "it counts GPUs; name the resource of a network's functions");
        }
        if !seen.insert(resource) {
            let reason = "it is listed twice; a function is of one network, so keep one of them";
            checks.refuse("rdma.resource", resource, reason);
        }
        if check_name("network", network).is_err() {
            let reason = "write 1 to 63 visible ASCII characters without spaces, as in ib-fabric";
            checks.refuse("rdma.network", network, reason);
        }
        if !(1..=MAX_GBITS).contains(gbits) {
            let reason = format!("{resource}: write the Gbit/s of one function, 1 to {MAX_GBITS}");
            checks.refuse("rdma.gbits", gbits, reason);
        }
    }
}
