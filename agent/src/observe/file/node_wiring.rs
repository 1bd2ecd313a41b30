//! NUMA nodes, networks and enforcement of a node in an inventory file. Checked here as the broker checks them, because an error
//! with line and column says more than a refused offer.

use comity_proto::v1;
use serde_saphyr::Location;

use super::amounts;
use super::inventory_format::{EnforcedPart, FileNode};
use super::mistakes::Problem;
use crate::observe::wiring::{MAX_GBITS, MAX_NETWORKS, MAX_NUMA_NODES, check_name};

/// The NUMA nodes of a node. They include those that its devices name, and their amounts do not exceed the node's.
pub(super) fn numa(
    given: &FileNode,
    at: Location,
    cpu_milli: u64,
    memory_mib: u64,
) -> Result<Vec<v1::NumaAmounts>, Problem> {
    if given.numa.len() > MAX_NUMA_NODES {
        return Err(Problem(
            at,
            format!("numa: {} are too many; a node has at most {MAX_NUMA_NODES}", given.numa.len()),
        ));
    }
    let mut numa = Vec::with_capacity(given.numa.len());
    for (&numa_node, has) in &given.numa {
        numa.push(v1::NumaAmounts {
            numa_node,
            cpu_milli: amounts::cpu_milli(&has.cpu)?,
            memory_mib: amounts::memory_mib(&has.memory)?,
        });
    }
    let sum = |amount: fn(&v1::NumaAmounts) -> u64| numa.iter().map(amount).fold(0, u64::saturating_add);
    for (field, sum, whole, of) in [
        ("cpu", sum(|has| has.cpu_milli), cpu_milli, "thousandths of a core"),
        ("memory", sum(|has| has.memory_mib), memory_mib, "MiB"),
    ] {
        if sum > whole {
            let reason = format!(
                "numa: {field} is {sum} {of} in all, and the node has {whole}; give what of each NUMA node pods can \
                 have"
            );
            return Err(Problem(at, reason));
        }
    }
    for gpus in given.gpus.iter().flatten().map(|gpus| &gpus.value) {
        if let Some(numa) = gpus.numa.as_ref().filter(|numa| !given.numa.contains_key(&numa.value)) {
            let reason = format!(
                "numa {} is no NUMA node of this node; list its NUMA nodes, as in numa: {{0: {{cpu: 56, memory: \
                 900Gi}}}}",
                numa.value
            );
            return Err(Problem(numa.referenced, reason));
        }
        if let Some(clique) = &gpus.nvlink {
            check_name("nvlink", &clique.value).map_err(|reason| Problem(clique.referenced, reason))?;
        }
    }
    Ok(numa)
}

/// The parts of a placement that the host enforces.
pub(super) fn enforcement(given: &FileNode) -> Option<v1::Enforcement> {
    let enforces = |part| given.enforces.contains(&part);
    (!given.enforces.is_empty())
        .then(|| v1::Enforcement { devices: enforces(EnforcedPart::Devices), numa: enforces(EnforcedPart::Numa) })
}

/// The networks of a node.
pub(super) fn rdma(given: &FileNode, at: Location) -> Result<Vec<v1::RdmaBandwidth>, Problem> {
    if given.rdma.len() > MAX_NETWORKS {
        let reason = format!("rdma: {} networks are too many; a node has at most {MAX_NETWORKS}", given.rdma.len());
        return Err(Problem(at, reason));
    }
    let mut rdma = Vec::with_capacity(given.rdma.len());
    for (network, gbits) in &given.rdma {
        check_name("rdma", network).map_err(|reason| Problem(gbits.referenced, reason))?;
        if !(1..=MAX_GBITS).contains(&gbits.value) {
            let reason = format!("rdma: {network} has {} Gbit/s; write 1 to {MAX_GBITS}", gbits.value);
            return Err(Problem(gbits.referenced, reason));
        }
        rdma.push(v1::RdmaBandwidth { network: network.clone(), gbits: gbits.value, ..v1::RdmaBandwidth::default() });
    }
    Ok(rdma)
}
