//! Local work that took GPUs between the offer on which a lease was placed and the lease's start.
//!
//! The broker calls back only leases in force, so the donor itself refuses a lease that is still set up. It compares
//! as the broker does: interchangeable devices of a node form one pool, because nobody knows which of them a local pod
//! holds.

use std::collections::BTreeSet;
use std::mem::discriminant;

use comity_agent_model::lease::Lease;
use comity_agent_model::lease::placement::{NodePlacement, WHOLE_MILLI};
use comity_proto::v1::{Device, Node, sharing};
use comity_types::LeaseState;

use super::Snapshot;

/// Why the lease's GPUs are not free, if local work holds them.
pub(super) fn shortage(snapshot: &Snapshot<'_>, nodes: &[Node], lease: &Lease) -> Option<String> {
    let mut parts = lease.placement.iter().flat_map(|placement| &placement.nodes);
    parts.find_map(|part| {
        let node = nodes.iter().find(|node| node.id == part.node)?;
        let indices = indices(part);
        let pools = indices.iter().filter_map(|index| pool(node, *index)).collect::<BTreeSet<_>>();
        pools.into_iter().find_map(|pool| shortage_of_pool(snapshot, lease, node, &pool))
    })
}

fn shortage_of_pool(snapshot: &Snapshot<'_>, lease: &Lease, node: &Node, pool: &BTreeSet<u32>) -> Option<String> {
    let devices = pool.iter().filter_map(|index| device(node, *index));
    let left: u64 = devices.map(|device| u64::from(WHOLE_MILLI.saturating_sub(device.local_use_milli))).sum();
    let whole = u64::from(WHOLE_MILLI) * pool.len() as u64;
    let lent: u64 = snapshot
        .desired
        .leases
        .iter()
        .filter(|other| other.id == lease.id || comes_before(snapshot, other, lease))
        .map(|other| milli(other, &node.id, pool))
        .sum();
    // Without local use there, the broker's own books are at fault, and it sees that itself.
    (left < whole && lent > left).then(|| {
        format!(
            "local work holds GPUs of node {} that {} was placed on: leases need {lent} thousandths of GPUs there, and \
             {left} are left",
            node.id, lease.id
        )
    })
}

/// Whether another lease of this donor keeps its GPUs: it was placed before, and is not on its way out.
fn comes_before(snapshot: &Snapshot<'_>, other: &Lease, lease: &Lease) -> bool {
    other.fencing_token < lease.fencing_token
        && other.is_wanted()
        && other.state != Some(LeaseState::Reclaiming)
        && snapshot.records.donors.get(&other.id).is_some_and(|record| !record.removed)
}

/// Thousandths of GPUs that a lease has in a pool.
fn milli(lease: &Lease, node: &str, pool: &BTreeSet<u32>) -> u64 {
    let parts = lease.placement.iter().flat_map(|placement| &placement.nodes).filter(|part| part.node == node);
    let shares = parts.flat_map(|part| &part.devices);
    shares
        .filter(|share| share.mig_starts.is_empty() && pool.contains(&share.device))
        .map(|share| u64::from(share.milli))
        .sum()
}

/// The part's devices. Instances at known slots are no pool: cutting them refuses what is in use.
fn indices(part: &NodePlacement) -> BTreeSet<u32> {
    part.devices.iter().filter(|share| share.mig_starts.is_empty()).map(|share| share.device).collect()
}

fn device(node: &Node, index: u32) -> Option<&Device> {
    node.devices.get(usize::try_from(index).ok()?)
}

/// The devices that are interchangeable with this one; `None` if it is gone, or a pool of its own.
fn pool(node: &Node, index: u32) -> Option<BTreeSet<u32>> {
    let first = device(node, index).filter(|device| !has_layout(device))?;
    let is_like = |other: &&Device| {
        !has_layout(other)
            && other.resource_name == first.resource_name
            && other.product_name == first.product_name
            && mode(other).map(discriminant) == mode(first).map(discriminant)
    };
    let numbered = (0_u32..).zip(&node.devices);
    Some(numbered.filter(|(_, other)| is_like(other)).map(|(index, _)| index).collect())
}

fn mode(device: &Device) -> Option<&sharing::Mode> {
    device.sharing.as_ref().and_then(|sharing| sharing.mode.as_ref())
}

fn has_layout(device: &Device) -> bool {
    matches!(mode(device), Some(sharing::Mode::Mig(mig)) if mig.layout.is_some())
}
