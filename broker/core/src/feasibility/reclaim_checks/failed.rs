//! Finds leases whose place has failed, or whose donor has been silent for so long that its work counts as lost.

use comity_types::{ClusterId, LeaseId, LeaseState, NodeId};

use crate::feasibility::reclaim_checks::pool::share_pool;
use crate::model::demand::NvLink;
use crate::model::health::{GONE_AFTER, NodeHealth};
use crate::model::inventory::{FaultClass, Node};
use crate::model::lease::Lease;
use crate::model::limits::WHOLE_MILLI;
use crate::model::placement::NodePlacement;
use crate::model::reclaim::ReclaimReason;
use crate::state::State;
use crate::state::usable::broken_cliques;

/// The worst failure of a lease's place; `None` if all of it is healthy, or if its health is unknown.
pub(crate) fn failure_of(state: &State, lease: &Lease) -> Option<ReclaimReason> {
    if !lease.occupies() || lease.state == LeaseState::Ending {
        return None;
    }
    let found = lease.placement.nodes.iter().filter_map(|(id, part)| failure_on_node(state, lease, id, part));
    found.max_by_key(ReclaimReason::leaves_no_time).or_else(|| donor_silence(state, lease))
}

fn failure_on_node(state: &State, lease: &Lease, id: &NodeId, part: &NodePlacement) -> Option<ReclaimReason> {
    let donor = &lease.placement.donor;
    let cluster = state.clusters.get(donor)?;
    let offer = cluster.offer.as_ref()?;
    let health = cluster.health.node(id);
    let Some(node) = offer.nodes.get(id) else {
        let gone = is_gone(state, donor, health);
        return gone.then(|| ReclaimReason::NodeFailed { node: id.clone(), gone: true });
    };
    let needs_nvlink = lease.topology.nvlink == NvLink::Required && part.devices.len() > 1;
    let fails = |index: u32| {
        let device = device_fails(state, donor, id, node, health, index);
        device.or_else(|| if needs_nvlink { link_fails(node, index) } else { None })
    };
    let devices = part.devices.keys().filter_map(|index| fails(*index));
    let worst = devices.max_by_key(|(index, class)| (*class, std::cmp::Reverse(*index)));
    if let Some((device, class)) = worst {
        return Some(ReclaimReason::DeviceFailed { node: id.clone(), device, class });
    }
    let node_fails = !node.ready || health.is_some_and(|health| health.until().is_some());
    node_fails.then(|| ReclaimReason::NodeFailed { node: id.clone(), gone: false })
}

/// Whether a node missing from the offer is gone: it has been missing for [`GONE_AFTER`] while most of the donor's
/// nodes are present. An agent that sees few of its nodes is an unreliable witness.
fn is_gone(state: &State, donor: &ClusterId, health: Option<&NodeHealth>) -> bool {
    let long_enough = |since| state.log_time.since(since) >= GONE_AFTER;
    let Some(cluster) = state.clusters.get(donor).filter(|cluster| cluster.connected) else { return false };
    let missing = cluster.health.nodes().filter(|(_, health)| health.gone_since.is_some()).count();
    let present = cluster.offer.as_ref().map_or(0, |offer| offer.nodes.len());
    health.and_then(|health| health.gone_since).is_some_and(long_enough) && missing <= present
}

/// The failure of one device of a lease.
fn device_fails(
    state: &State,
    donor: &ClusterId,
    id: &NodeId,
    node: &Node,
    health: Option<&NodeHealth>,
    index: u32,
) -> Option<(u32, FaultClass)> {
    let device = node.devices.get(usize::try_from(index).ok()?)?;
    let class = device.fault.as_ref().map(|fault| fault.class);
    if let Some(class) = class.filter(|class| class.withdraws()) {
        return Some((index, class));
    }
    let barred = health.is_some_and(|health| health.quarantines_identified(index));
    let degraded = barred || (!device.healthy && is_short(state, donor, id, node, index));
    degraded.then_some((index, FaultClass::Degraded))
}

/// The failure of the NVLink clique of one device.
fn link_fails(node: &Node, index: u32) -> Option<(u32, FaultClass)> {
    let device = node.devices.get(usize::try_from(index).ok()?)?;
    let clique = device.wiring.nvlink.as_deref()?;
    broken_cliques(node).contains(clique).then_some((index, FaultClass::Link))
}

/// Whether the healthy devices in the pool of device `index` are fewer than the pool has lent. A cluster that reports
/// an unhealthy device without a reason only counts it: which device it is, and whose, is unknown. As long as enough
/// healthy devices remain, nothing is reclaimed.
fn is_short(state: &State, donor: &ClusterId, id: &NodeId, node: &Node, index: u32) -> bool {
    let Some(device) = usize::try_from(index).ok().and_then(|at| node.devices.get(at)) else { return false };
    let lent = state.occupancy().node(donor, id);
    let (mut has, mut holds) = (0_u64, 0_u64);
    for (index, other) in (0_u32..).zip(&node.devices).filter(|(_, other)| share_pool(device, other)) {
        has += u64::from(if other.healthy { WHOLE_MILLI.saturating_sub(other.local_use_milli) } else { 0 });
        holds += u64::from(lent.and_then(|lent| lent.devices.get(&index)).copied().unwrap_or(0));
    }
    has < holds
}

/// Gives up a donor that has been silent for too long, provided that most clusters are connected. Otherwise the brokers
/// themselves may be cut off.
fn donor_silence(state: &State, lease: &Lease) -> Option<ReclaimReason> {
    let donor = state.clusters.get(&lease.placement.donor).filter(|cluster| !cluster.connected)?;
    if state.check_part(&lease.placement.donor).is_err() {
        // It is silent because it is evicted or suspended, and that decided about its leases.
        return None;
    }
    let members = state.clusters.iter().filter(|(id, _)| state.check_part(id).is_ok());
    let (heard, silent): (Vec<_>, Vec<_>) = members.partition(|(_, cluster)| cluster.connected);
    let too_long = state.log_time.since(donor.since) >= state.settings().donor_lost_after;
    // Before a lease is active, its hold applies.
    let in_force = matches!(lease.state, LeaseState::Suspect | LeaseState::Reclaiming);
    (in_force && too_long && heard.len() >= silent.len()).then_some(ReclaimReason::DonorSilent)
}

/// Whether a lease may be reclaimed for a failure, or because policy stops it: it is in force or being set up, or is being
/// reclaimed for something less severe. A failed lease that ends its request ends at its deadline in any case.
pub(crate) fn may_reclaim_urgently(lease: &Lease, reason: &ReclaimReason) -> bool {
    match lease.state {
        LeaseState::Placed | LeaseState::Connecting | LeaseState::Active | LeaseState::Suspect => true,
        LeaseState::Reclaiming => {
            let has_time = lease.reclaim.as_ref().is_some_and(|reclaim| !reclaim.reason.leaves_no_time());
            reason.leaves_no_time() && has_time && (reason.is_stop() || !lease.ends_its_request())
        }
        LeaseState::Ending | LeaseState::Ended => false,
    }
}

/// The leases to reclaim or end at one donor because their place failed.
pub(crate) fn failures(state: &State, donor: &ClusterId) -> Vec<(LeaseId, ReclaimReason)> {
    let lent = state.leases_of(donor).filter(|(_, lease)| lease.placement.donor == *donor);
    let found = lent.filter_map(|(id, lease)| {
        let reason = failure_of(state, lease)?;
        may_reclaim_urgently(lease, &reason).then_some((id, reason))
    });
    found.collect()
}
