//! Converts the broker's messages to facts for the plan.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::gpu_resource::NVIDIA_GPU_SHARED;
use comity_agent_model::desired_state::DesiredState;
use comity_agent_model::gpu_demand::Share;
use comity_agent_model::lease::Lease;
use comity_agent_state::record::Records;
use comity_proto::v1;
use comity_proto::v1::sharing::Mode;
use comity_runtime::SpiffeId;
use comity_types::{Delivery, LeaseState};

use crate::burst::facts::demand::WHOLE_GPU_MILLI;
use crate::burst::facts::pod_options::PodOptions;
use crate::burst::group::BurstNote;
use crate::burst::snapshot::{LeaseFacts, LeaseStage, RequestFacts};

/// Facts of a request that has not ended. Only one for a virtual node keeps its note, and thus serves pods.
pub(super) fn request(request: &v1::Request, cluster: &str) -> Option<RequestFacts> {
    if !matches!(request.state(), v1::RequestState::Queued | v1::RequestState::Placed) {
        return None;
    }
    let spec = request.spec.clone().unwrap_or_default();
    let gpus = spec.gpus.clone().unwrap_or_default();
    Some(RequestFacts {
        namespace: spec.target_namespace.clone(),
        tenant: spec.tenant.clone(),
        class: gpus.class,
        gpus: gpus.count,
        share: gpus.share.and_then(|share| share.kind).map(Share::from),
        cpu_milli_per_gpu: gpus.cpu_milli_per_gpu,
        memory_mib_per_gpu: gpus.memory_mib_per_gpu,
        is_queued: request.state() == v1::RequestState::Queued,
        lease: Some(request.lease.clone()).filter(|lease| !lease.is_empty()),
        message: request.message.clone(),
        short_since_ms: None,
        kept_until_ms: 0,
        options: PodOptions::from_message(&spec),
        is_submitted_here: request
            .submitted_by
            .parse::<SpiffeId>()
            .is_ok_and(|by| by.as_cluster().is_some_and(|by| by.as_str() == cluster)),
        note: BurstNote::parse(&spec.note).filter(|_| spec.delivery() == v1::Delivery::VirtualNode),
    })
}

/// Own leases by virtual node; the records name their nodes.
pub(super) fn leases(state: &DesiredState, cluster: &str, records: &Records) -> BTreeMap<String, LeaseFacts> {
    let own = state.leases.iter().filter(|lease| {
        lease.origin.as_str() == cluster
            && lease.delivery == Delivery::VirtualNode
            && lease.state != Some(LeaseState::Ended)
    });
    let node = |lease: &Lease| records.origins.get(&lease.id).and_then(|record| record.node.clone());
    own.map(|lease| (lease.id.to_string(), LeaseFacts { node: node(lease), ..facts(lease) })).collect()
}

fn facts(lease: &Lease) -> LeaseFacts {
    let gpus = lease.gpus.clone().unwrap_or_default();
    let placement = lease.placement.as_ref();
    LeaseFacts {
        request: lease.request.to_string(),
        namespace: lease.target_namespace.clone(),
        tenant: lease.tenant.clone(),
        donor: placement.map(|placement| placement.donor.to_string()).unwrap_or_default(),
        node: None,
        class: gpus.class,
        resource: placement.map(|placement| placement.resource_name.clone()).unwrap_or_default(),
        gpus: gpus.count,
        share: gpus.share,
        cpu_milli_per_gpu: gpus.cpu_milli_per_gpu,
        memory_mib_per_gpu: gpus.memory_mib_per_gpu,
        stage: match lease.state {
            Some(LeaseState::Active) => LeaseStage::Active,
            Some(LeaseState::Reclaiming) => LeaseStage::Reclaiming,
            Some(LeaseState::Ending | LeaseState::Ended) => LeaseStage::Ending,
            // Suspect too: nothing new is sent to a silent side.
            _ => LeaseStage::Coming,
        },
        expires_at_ms: lease.expires_at_ms,
        term_ms: lease.term_ms,
        hold_until_ms: lease.hold_until_ms,
        idle_since_ms: None,
    }
}

/// GPUs that are healthy, that no local work uses and that are not lent, by node and resource: whole devices, and shares
/// where they have a name of their own.
pub(super) fn local(nodes: &[v1::Node], state: Option<&DesiredState>, cluster: &str) -> Vec<BTreeMap<String, u64>> {
    let mut lent: BTreeSet<(&str, u32)> = BTreeSet::new();
    for lease in state.into_iter().flat_map(|state| &state.leases) {
        let Some(placement) = lease.placement.as_ref().filter(|placement| placement.donor.as_str() == cluster) else {
            continue;
        };
        if lease.state != Some(LeaseState::Ended) {
            let devices = placement
                .nodes
                .iter()
                .flat_map(|node| node.devices.iter().map(|share| (node.node.as_str(), share.device)));
            lent.extend(devices);
        }
    }
    let free_on = |node: &v1::Node| {
        let mut free = BTreeMap::new();
        for device in &node.devices {
            let mode = device.sharing.as_ref().and_then(|sharing| sharing.mode.as_ref());
            let parts = match mode {
                None | Some(Mode::Exclusive(_)) => 1,
                Some(Mode::TimeSlicing(slices)) if device.resource_name == NVIDIA_GPU_SHARED => slices.replicas,
                Some(Mode::Mps(mps)) if device.resource_name == NVIDIA_GPU_SHARED => mps.shares,
                Some(_) => 0,
            };
            let free_milli = WHOLE_GPU_MILLI.saturating_sub(device.local_use_milli);
            let free_parts = free_milli.checked_div(WHOLE_GPU_MILLI / parts.max(1)).unwrap_or(0).min(parts);
            if free_parts > 0 && device.healthy && !lent.contains(&(&node.id, device.index)) {
                *free.entry(device.resource_name.clone()).or_insert(0) += u64::from(free_parts);
            }
        }
        free
    };
    nodes.iter().filter(|node| node.schedulable).map(free_on).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use comity_agent_model::lease::placement::{DeviceShare, NodePlacement, Placement};
    use comity_agent_state::record::OriginRecord;
    use comity_types::{LeaseId, PeeringId, RequestId};

    use super::*;

    fn lease(id: u64, origin: &str) -> Lease {
        Lease::new(LeaseId(id), RequestId(id), origin.parse().unwrap(), PeeringId(1))
    }

    #[test]
    fn lent_used_and_broken_devices_are_not_free() {
        let device = |index: u32, healthy: bool, local_use_milli: u32| v1::Device {
            index,
            healthy,
            local_use_milli,
            resource_name: "nvidia.com/gpu".to_owned(),
            ..v1::Device::default()
        };
        let devices = vec![device(0, true, 0), device(1, true, 1_000), device(2, false, 0), device(3, true, 0)];
        let node = |id: &str, schedulable| v1::Node {
            id: id.to_owned(),
            schedulable,
            devices: devices.clone(),
            ..v1::Node::default()
        };
        let nodes = [node("a", true), node("b", false)];
        assert_eq!(local(&nodes, None, "here"), [BTreeMap::from([("nvidia.com/gpu".to_owned(), 2)])]);
        let sliced = |strategy: Mode, local_use_milli| v1::Device {
            sharing: Some(v1::Sharing { mode: Some(strategy) }),
            resource_name: NVIDIA_GPU_SHARED.to_owned(),
            ..device(0, true, local_use_milli)
        };
        let four = || Mode::TimeSlicing(v1::sharing::TimeSlicing { replicas: 4 });
        let shared = v1::Node {
            devices: vec![
                sliced(four(), 250),
                sliced(four(), 1_000),
                sliced(Mode::Mps(v1::sharing::Mps { shares: 3 }), 333),
                sliced(Mode::Fractional(v1::sharing::Fractional { step_milli: 50 }), 0),
            ],
            ..node("c", true)
        };
        assert_eq!(local(&[shared], None, "here"), [BTreeMap::from([(NVIDIA_GPU_SHARED.to_owned(), 5)])]);
        let share = DeviceShare { device: 3, milli: 1_000, ..DeviceShare::default() };
        let part = NodePlacement { node: "a".to_owned(), devices: vec![share], ..NodePlacement::default() };
        let placement = Placement { nodes: vec![part], ..Placement::new("here".parse().unwrap()) };
        let lease = Lease { placement: Some(placement), state: Some(LeaseState::Active), ..lease(1, "there") };
        let state = DesiredState { leases: vec![lease], ..DesiredState::default() };
        assert_eq!(local(&nodes, Some(&state), "here")[0]["nvidia.com/gpu"], 1);
    }

    #[test]
    fn only_own_virtual_nodes_are_room_for_pods() {
        let lease = |id: u64, origin: &str, delivery: Delivery, state: LeaseState| Lease {
            delivery,
            state: Some(state),
            ..lease(id, origin)
        };
        let all = vec![
            lease(1, "here", Delivery::VirtualNode, LeaseState::Active),
            lease(2, "there", Delivery::VirtualNode, LeaseState::Active),
            lease(3, "here", Delivery::Namespace, LeaseState::Active),
            lease(4, "here", Delivery::VirtualNode, LeaseState::Suspect),
            lease(5, "here", Delivery::VirtualNode, LeaseState::Ended),
        ];
        let mut records = Records::default();
        let record = OriginRecord::new(LeaseId(4), 1, Delivery::VirtualNode);
        let record = OriginRecord { node: Some("lease-2".to_owned()), ..record };
        records.origins.insert(LeaseId(4), Arc::new(record));
        let found = leases(&DesiredState { leases: all, ..DesiredState::default() }, "here", &records);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["lease-1", "lease-4"]);
        assert_eq!(found.get("lease-1").unwrap().node, None);
        assert_eq!(found.get("lease-4").unwrap().node.as_deref(), Some("lease-2"));
        assert_eq!(found.get("lease-4").unwrap().stage, LeaseStage::Coming);
    }

    #[test]
    fn a_request_that_ended_has_no_room() {
        let mut message = v1::Request { state: v1::RequestState::Queued.into(), ..v1::Request::default() };
        let queued = request(&message, "here").unwrap();
        assert!(queued.is_queued && !queued.is_submitted_here);
        message.submitted_by = "spiffe://comity.example/cluster/here".to_owned();
        assert!(request(&message, "here").unwrap().is_submitted_here);
        message.state = v1::RequestState::Cancelled.into();
        assert!(request(&message, "here").is_none());
    }
}
