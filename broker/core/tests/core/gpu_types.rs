//! Work whose checkpoints fit only the type of GPUs that wrote them (`sameGpuType`).

use comity_core::command::Expire;
use comity_core::demand::{Preemptible, RequestSpec, Share};
use comity_core::inventory::{Device, Offer, Sharing};
use comity_core::{Command, Millis, explain, scheduler};
use comity_types::{LeaseId, RequestState};

use super::boxes::obstacle;
use super::federation::{Federation, cluster, device, node, offer, spec};
use super::reclaim::{GRACE, at, used};

fn h200() -> Device {
    Device { product_name: "NVIDIA-H200".into(), ..device(81_559, Sharing::Exclusive) }
}

/// Its checkpoints fit one type of GPUs.
fn bound(count: u32) -> RequestSpec {
    let preemptible = Some(Preemptible { grace: Millis(0), checkpoint: true, same_gpu_type: true });
    RequestSpec { preemptible, duration: Millis::from_hours(8), ..spec(count, Share::Whole, "big") }
}

fn products(federation: &Federation, lease: LeaseId) -> Vec<String> {
    let placement = &federation.state.leases[&lease].placement;
    let offer = federation.state.clusters[&placement.donor].offer.as_ref().unwrap();
    let devices = placement.nodes.iter().flat_map(|(node, part)| {
        part.devices.keys().map(|index| &offer.nodes[node].devices[usize::try_from(*index).unwrap()])
    });
    devices.map(|device| device.product_name.to_string()).collect()
}

fn h200_at_north(generation: u64) -> Offer {
    offer(generation, &[("n1", 8, h200())])
}

#[test]
fn the_replacement_of_a_reclaimed_lease_has_the_same_type() {
    let mut federation = Federation::ready();
    federation.offer("north", offer(2, &[]));
    let (request, lease) = federation.running(bound(2));
    federation.offer("north", h200_at_north(3));
    federation.offer("south", used(2, &[("s1", 4, 3)]));
    let reclaims = federation.needs("south");
    assert_eq!(federation.reclaim(reclaims), [lease]);
    assert!(scheduler::plan(&federation.state, 10).placements.is_empty(), "north has another type");
    let spec = &federation.state.requests[&request].spec;
    assert_eq!(spec.gpus.gpu_type.as_ref().unwrap().to_string(), "NVIDIA-H100-80GB-HBM3");
    let (code, reason, _) = obstacle(&federation, spec);
    assert_eq!(code, "other-gpu-type");
    assert!(reason.contains("NVIDIA-H100-80GB-HBM3"), "{reason}");

    // The request waits for its type after the lease has ended, too.
    let end = federation.now + GRACE;
    federation.now = end;
    federation.ok(Command::Expire(Expire {}));
    federation.stop(lease);
    assert_eq!(federation.state.requests[&request].state, RequestState::Queued);
    assert!(scheduler::plan(&federation.state, 10).placements.is_empty());
    let h100 = device(81_559, Sharing::Exclusive);
    federation.offer("north", offer(4, &[("n1", 8, h200()), ("n2", 2, h100)]));
    let next = federation.place()[0];
    assert_eq!(products(&federation, next), ["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3"]);
}

#[test]
fn without_the_demand_any_type_of_the_class_will_do() {
    let mut federation = Federation::ready();
    federation.offer("north", offer(2, &[]));
    let mut free = bound(2);
    free.preemptible.as_mut().unwrap().same_gpu_type = false;
    let (request, _) = federation.running(free);
    federation.offer("north", h200_at_north(3));
    federation.offer("south", used(2, &[("s1", 4, 3)]));
    let reclaims = federation.needs("south");
    federation.reclaim(reclaims);
    let next = federation.place()[0];
    assert_eq!(federation.state.leases[&next].placement.donor, cluster("north"));
    assert_eq!(federation.state.requests[&request].spec.gpus.gpu_type, None);
}

#[test]
fn a_lease_has_one_type_from_the_start() {
    let mut federation = Federation::ready();
    federation.offer("south", offer(2, &[]));
    let mut mixed = offer(2, &[("n1", 2, device(81_559, Sharing::Exclusive)), ("n2", 2, h200())]);
    let devices = &mut mixed.nodes.get_mut(&node("n1")).unwrap().devices;
    devices.iter_mut().take(1).for_each(|device| device.local_use_milli = 1_000);
    federation.offer("north", mixed);
    let any = spec(3, Share::Whole, "big");
    assert!(explain::quote(&federation.state, &any).placements.len() == 1);
    federation.submit(bound(3));
    assert!(scheduler::plan(&federation.state, 10).placements.is_empty(), "three GPUs of one type are not free");
    let (_, lease) = federation.running(bound(2));
    assert_eq!(products(&federation, lease), ["NVIDIA-H200", "NVIDIA-H200"]);
}

#[test]
fn contradictory_demands_are_refused() {
    let no_checkpoints = Preemptible { grace: Millis(0), checkpoint: false, same_gpu_type: true };
    let refusal = RequestSpec { preemptible: Some(no_checkpoints), ..at("north", bound(1)) }.check().unwrap_err();
    assert!(refusal.to_string().contains("same_gpu_type"), "{refusal}");
    let members = Some(comity_core::demand::Members { min: 2, desired: 2 });
    let refusal = RequestSpec { members, spread_donors: true, ..bound(1) }.check().unwrap_err();
    assert!(refusal.to_string().contains("same_gpu_type"), "{refusal}");
}
