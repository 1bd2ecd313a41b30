//! Converts leases and placements.

use comity_core::lease::{Lease, SideState};
use comity_core::placement::Placement;
use comity_core::reclaim::{Reclaim, ReclaimReason};
use comity_proto::v1;
use comity_types::LeaseId;

use crate::api::convert::request::demand_to_proto;
use crate::api::convert::{data, delivery, time_or_zero, wiring};

/// Converts to the API message.
#[must_use]
pub fn to_proto(id: LeaseId, lease: &Lease) -> v1::Lease {
    v1::Lease {
        id: id.to_string(),
        request: lease.request.to_string(),
        tenant: lease.tenant.to_string(),
        origin: lease.origin.to_string(),
        placement: Some(placement_to_proto(&lease.placement)),
        peering: lease.peering.to_string(),
        state: v1::LeaseState::from(lease.state).into(),
        end_reason: lease.end_reason.map_or(v1::EndReason::Unspecified, v1::EndReason::from).into(),
        fencing_token: lease.fencing_token,
        hold_until_ms: lease.hold_until.0,
        expires_at_ms: time_or_zero(lease.expires_at),
        placed_at_ms: lease.placed_at.0,
        active_at_ms: time_or_zero(lease.active_at),
        ended_at_ms: time_or_zero(lease.ended_at),
        donor_ready: lease.donor_side == SideState::Ready,
        origin_ready: lease.origin_side == SideState::Ready,
        message: lease.message.clone(),
        donor_namespace: lease.donor_namespace.clone(),
        target_namespace: lease.target_namespace.clone(),
        revision: lease.revision,
        gpus: Some(demand_to_proto(&lease.gpus)),
        term_ms: lease.term.0,
        secret_name: lease.secret_name.clone(),
        traceparent: lease.traceparent.clone(),
        delivery: delivery::to_proto(lease.delivery),
        reclaim: lease.reclaim.as_ref().map(reclaim_to_proto),
        checkpointed_at_ms: time_or_zero(lease.checkpointed_at),
        moved_from: lease.moved_from.map(|id| id.to_string()).unwrap_or_default(),
        moved_to: lease.moved_to.map(|id| id.to_string()).unwrap_or_default(),
        release_idle_ms: lease.release_idle.map_or(0, |limit| limit.0),
        idle_since_ms: time_or_zero(lease.idle_since),
        class: lease.class.to_string(),
        data: data::needs_to_proto(&lease.data),
        purpose: lease.purpose.clone(),
    }
}

fn reclaim_to_proto(reclaim: &Reclaim) -> v1::Reclaim {
    let (reason, policy_code, by_request) = match &reclaim.reason {
        ReclaimReason::LocalNeed => (v1::ReclaimReason::LocalNeed, String::new(), String::new()),
        ReclaimReason::PolicyChanged { code, treatment: _ } => {
            (v1::ReclaimReason::PolicyChanged, code.clone(), String::new())
        }
        ReclaimReason::Preempted { by } => (v1::ReclaimReason::Preempted, String::new(), by.to_string()),
        ReclaimReason::Migration { by } => (v1::ReclaimReason::Migration, String::new(), by.to_string()),
        ReclaimReason::BorrowedQuota { by, .. } => (v1::ReclaimReason::BorrowedQuota, String::new(), by.to_string()),
        ReclaimReason::DeviceFailed { .. } => (v1::ReclaimReason::DeviceFailed, String::new(), String::new()),
        ReclaimReason::NodeFailed { .. } => (v1::ReclaimReason::NodeFailed, String::new(), String::new()),
        ReclaimReason::DonorSilent => (v1::ReclaimReason::DonorSilent, String::new(), String::new()),
        ReclaimReason::Revoked { .. } | ReclaimReason::UserRevoked { .. } => {
            (v1::ReclaimReason::Revoked, String::new(), String::new())
        }
    };
    v1::Reclaim {
        reason: reason.into(),
        policy_code,
        by_request,
        since_ms: reclaim.since.0,
        deadline_ms: reclaim.deadline.0,
        failed: if reclaim.reason.is_failure() { reclaim.reason.to_string() } else { String::new() },
    }
}

/// Converts to the API message.
#[must_use]
pub fn placement_to_proto(placement: &Placement) -> v1::Placement {
    let nodes = placement.nodes.iter().map(|(id, node)| v1::NodePlacement {
        node: id.to_string(),
        devices: node
            .devices
            .iter()
            .map(|(device, share)| v1::DeviceShare {
                device: *device,
                milli: share.milli,
                units: share.units,
                mig_starts: share.starts().into_iter().map(u32::from).collect(),
            })
            .collect(),
        cpu_milli: node.cpu_milli,
        memory_mib: node.memory_mib,
        numa: wiring::numa_to_proto(node.numa.iter()),
        rdma: wiring::rdma_of_part(node),
    });
    v1::Placement {
        donor: placement.donor.to_string(),
        nodes: nodes.collect(),
        offer_generation: placement.offer_generation,
        resource_name: placement.resource_name.clone(),
        resource_count: placement.resource_count,
        mig_profile: placement.profile.clone().unwrap_or_default(),
    }
}
