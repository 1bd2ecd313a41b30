//! The choices of the scheduler and their explanations.

use std::collections::BTreeSet;

use comity_core::command::{AdvertiseOffer, LeaseOutcome, MarkClusters, PlaceRequests, ReleaseLease, RenewLease};
use comity_core::demand::{Isolation, RequestSpec, Share, Topology};
use comity_core::explain;
use comity_core::feasibility;
use comity_core::inventory::{Device, Offer, Sharing};
use comity_core::proposal::ProposedPlacement;
use comity_core::refusal::Code;
use comity_core::scheduler::{self, Plan, Planner};
use comity_core::{Command, Millis, ReplyBody};
use comity_types::Delivery;

use super::boxes;
use super::federation::{Federation, cluster, device, node, offer, spec};
use super::mig;

#[test]
fn a_gang_takes_the_node_that_it_fits_best() {
    let mut federation = Federation::ready();
    federation.submit(spec(3, Share::Whole, "big"));
    let lease = federation.place()[0];
    let placement = &federation.state.leases[&lease].placement;
    assert_eq!(placement.donor, cluster("south"), "north's nodes of eight are for gangs that need them");
    assert_eq!(placement.units(), 3);
    assert_eq!(placement.resource_count, 3);
    assert_eq!(placement.nodes.len(), 1);
    assert_eq!((placement.cpu_milli(), placement.memory_mib()), (12_000, 48_000));
}

#[test]
fn exactly_the_free_capacity_can_be_lent() {
    let mut federation = Federation::ready();
    for _ in 0..21 {
        federation.submit(spec(1, Share::Whole, "big"));
    }
    assert_eq!(federation.place().len(), 20);
    assert_eq!(federation.state.queued_len(), 1);
    assert!(scheduler::plan(&federation.state, 10).placements.is_empty());
}

#[test]
fn gangs_spread_over_nodes_unless_they_must_not() {
    let mut federation = Federation::ready();
    federation.submit(spec(12, Share::Whole, "big"));
    let lease = federation.place()[0];
    assert_eq!(federation.state.leases[&lease].placement.nodes.len(), 2);

    let mut together = spec(12, Share::Whole, "big");
    together.topology.same_node = true;
    let request = federation.submit(together);
    assert!(federation.place().is_empty());
    let spec = &federation.state.requests[&request].spec;
    let explanation = explain::explain(&federation.state, spec);
    let codes: Vec<_> = explanation.donors.iter().map(|d| d.obstacle.as_ref().unwrap().code.as_str()).collect();
    assert_eq!(codes, ["no-such-devices", "no-such-devices"]);
}

#[test]
fn whole_nodes_are_taken_whole() {
    let mut federation = Federation::ready();
    let whole = |count| {
        let mut spec = spec(count, Share::Whole, "big");
        spec.topology = Topology { whole_node: true, ..Topology::default() };
        spec
    };
    federation.submit(RequestSpec { allow_donors: vec![cluster("north")], ..spec(1, Share::Whole, "big") });
    federation.place();
    federation.submit(whole(8));
    let lease = federation.place()[0];
    let placement = &federation.state.leases[&lease].placement;
    assert_eq!((placement.nodes.len(), placement.units()), (1, 8));
    // The other node of eight is partly lent, and south's node has four GPUs: seven fill no whole nodes.
    federation.submit(whole(7));
    assert!(federation.place().is_empty());
    federation.submit(whole(4));
    let lease = federation.place()[0];
    assert_eq!(federation.state.leases[&lease].placement.donor, cluster("south"));
}

#[test]
fn fractions_fill_devices_that_are_in_use_already() {
    let mut federation = Federation::ready();
    let sliced = device(40_960, Sharing::TimeSlicing { replicas: 4 });
    federation.offer("south", offer(2, &[("s1", 2, sliced)]));
    for _ in 0..5 {
        federation.submit(spec(1, Share::Milli(250), "small"));
    }
    assert_eq!(federation.place().len(), 5);
    let lent = federation.state.occupancy().node(&cluster("south"), &node("s1")).unwrap();
    assert_eq!(lent.devices.values().copied().collect::<Vec<_>>(), [1000, 250]);
}

#[test]
fn explanations_name_the_obstacle_and_remedy_of_each_donor() {
    let mut federation = Federation::ready();
    federation.offer("south", offer(2, &[("s1", 4, device(40_960, Sharing::Exclusive))]));
    let south = vec![cluster("south")];
    federation.ok(Command::MarkClusters(MarkClusters { heard: Vec::new(), silent: south }));
    let mut wanted = spec(1, Share::Whole, "small");
    wanted.duration = Millis::from_hours(1);
    let request = federation.submit(wanted);
    let explanation = explain::explain(&federation.state, &federation.state.requests[&request].spec);
    let by_donor: Vec<_> = explanation
        .donors
        .iter()
        .map(|d| (d.donor.as_str(), d.obstacle.as_ref().unwrap()))
        .map(|(donor, obstacle)| (donor, obstacle.code.as_str(), !obstacle.unblock.is_empty()))
        .collect();
    assert_eq!(by_donor, [("north", "no-such-devices", true), ("south", "donor-silent", true)]);
    assert_eq!(explanation.summary, "not placed: none of 2 donors can serve it now");
    // Waiting does not help at a donor that has no such device.
    federation.offer("south", offer(3, &[("s1", 4, device(81_559, Sharing::Exclusive))]));
    let explanation = explain::explain(&federation.state, &federation.state.requests[&request].spec);
    assert_eq!(explanation.summary, "not placed: none of 2 donors could ever serve it");
}

#[test]
fn a_forged_or_stale_placement_is_refused() {
    let mut federation = Federation::ready();
    let wanted = RequestSpec { allow_donors: vec![cluster("north")], ..spec(2, Share::Whole, "big") };
    let request = federation.submit(wanted);
    let good = scheduler::plan(&federation.state, 1).placements.remove(0);
    let mut forgeries = Vec::new();
    let forge = |change: &dyn Fn(&mut ProposedPlacement)| {
        let mut forged = good.clone();
        change(&mut forged);
        forged
    };
    forgeries.push(forge(&|p| p.placement.donor = cluster("west")));
    forgeries.push(forge(&|p| p.placement.donor = cluster("elsewhere")));
    forgeries.push(forge(&|p| p.placement.resource_count = 9));
    forgeries.push(forge(&|p| p.placement.nodes.clear()));
    forgeries.push(forge(&|p| {
        let part = p.placement.nodes.iter_mut().next().unwrap().1;
        part.devices.iter_mut().next().unwrap().1.milli = 1;
    }));
    forgeries.push(forge(&|p| {
        let part = p.placement.nodes.iter_mut().next().unwrap().1;
        let share = *part.devices.values().next().unwrap();
        part.devices.clear();
        part.devices.insert(99, comity_core::placement::DeviceShare { units: 2, ..share });
    }));
    forgeries.push(forge(&|p| p.placement.nodes.iter_mut().next().unwrap().1.cpu_milli = 0));
    for forged in &forgeries {
        let refusal = feasibility::check(&federation.state, request, &forged.placement).unwrap_err();
        assert_eq!(refusal.code, Code::NoCapacity, "{forged:?}");
    }
    // The offer shrinks after the plan: `apply` checks again.
    let none = offer(2, &[("n1", 0, device(81_559, Sharing::Exclusive))]);
    federation.ok(Command::AdvertiseOffer(AdvertiseOffer { cluster: cluster("north"), offer: none }));
    let reply = federation.ok(Command::PlaceRequests(PlaceRequests { placements: vec![good] })).reply.unwrap();
    match reply {
        ReplyBody::Placed { leases, refused } => assert_eq!((leases.len(), refused.len()), (0, 1)),
        other => panic!("{other:?}"),
    }
    assert_eq!(federation.state.queued_len(), 1);
}

#[test]
fn a_selector_is_served_by_one_class_at_a_time() {
    let mut federation = Federation::ready();
    let mut wanted = spec(2, Share::Whole, "big");
    wanted.gpus.devices = comity_core::demand::DeviceChoice::Selector("device.architecture == 'hopper'".into());
    federation.submit(wanted.clone());
    let lease = federation.place()[0];
    assert_eq!(federation.state.leases[&lease].class.as_str(), "big");
    wanted.gpus.devices = comity_core::demand::DeviceChoice::Selector("device.nonsense == 1".into());
    let refusal = feasibility::check_request(&federation.state, &wanted).unwrap_err();
    assert_eq!((refusal.code, refusal.field.as_str()), (Code::InvalidField, "spec.gpus.selector"));
}

#[test]
fn a_checkpoint_secret_needs_a_name_and_a_virtual_node() {
    let named = |name: &str, spec| RequestSpec { checkpoint_secret: Some(name.to_owned()), ..spec };
    assert!(named("checkpoints.team-a", by_virtual_node(1)).check().is_ok());
    for (spec, problem, remedy) in [
        (named("My Bucket", by_virtual_node(1)), "is not the name of a Secret", "lower-case letters"),
        (named("bucket", spec(1, Share::Whole, "big")), "only pods on a virtual node", "in the lease's namespace"),
    ] {
        let refusal = spec.check().unwrap_err();
        assert_eq!(refusal.field, "spec.checkpoint_secret");
        assert_eq!(Some(&refusal.value), spec.checkpoint_secret.as_ref());
        assert!(refusal.reason.contains(problem) && refusal.remedy.contains(remedy), "{refusal}");
    }
}

fn by_virtual_node(count: u32) -> RequestSpec {
    RequestSpec { delivery: Delivery::VirtualNode, target_namespace: "lab".into(), ..spec(count, Share::Whole, "big") }
}

fn by_namespace_only(generation: u64) -> Offer {
    let nodes = [("n1", 8, device(81_559, Sharing::Exclusive))];
    Offer { deliveries: BTreeSet::from([Delivery::Namespace]), ..offer(generation, &nodes) }
}

#[test]
fn a_virtual_node_needs_a_donor_whose_terms_and_agent_allow_it() {
    let mut federation = Federation::ready();
    // South is the better fit, and its agent supports the delivery, but its terms do not allow it.
    let request = federation.submit(by_virtual_node(4));
    let explanation = explain::explain(&federation.state, &federation.state.requests[&request].spec);
    let south = explanation.donors.iter().find(|d| d.donor == cluster("south")).unwrap().obstacle.as_ref().unwrap();
    assert_eq!(south.code, "no-delivery");
    assert!(south.unblock.contains("add `virtual-node` to `delivery` of Cluster south"), "{south:?}");
    assert!(south.by[0].starts_with("Cluster south (all.yaml:"), "{south:?}");
    assert_eq!(explanation.summary, "fits on north");

    let lease = federation.place()[0];
    let held = &federation.state.leases[&lease];
    assert_eq!((&held.placement.donor, held.delivery), (&cluster("north"), Delivery::VirtualNode));
    assert_eq!(held.target_namespace, "lab");
}

#[test]
fn a_donor_whose_agent_cannot_deliver_now_is_explained_and_not_chosen() {
    let mut federation = Federation::ready();
    federation.offer("north", by_namespace_only(2));
    let quote = explain::quote(&federation.state, &by_virtual_node(1));
    assert!(quote.placements.is_empty());
    let north = quote.explanation.donors[0].obstacle.as_ref().unwrap();
    assert_eq!((quote.explanation.donors[0].donor.as_str(), north.code.as_str()), ("north", "delivery-not-offered"));
    assert_eq!(north.reason, "the agent of north does not offer delivery virtual-node now");
    assert!(north.unblock.contains("wait until it does") && north.unblock.ends_with("ask for delivery namespace"));

    federation.submit(by_virtual_node(1));
    assert!(federation.place().is_empty());
    federation.submit(spec(1, Share::Whole, "big"));
    assert_eq!(federation.place().len(), 1, "it still delivers by namespace");
    federation.offer("north", offer(3, &[("n1", 8, device(81_559, Sharing::Exclusive))]));
    assert_eq!(federation.place().len(), 1, "and by virtual node once its agent can");
}

#[test]
fn apply_checks_again_that_the_delivery_is_offered() {
    let mut federation = Federation::ready();
    let request = federation.submit(by_virtual_node(1));
    let planned = scheduler::plan(&federation.state, 1).placements.remove(0);
    // The donor's Liqo fails between the plan and its commit.
    federation.offer("north", by_namespace_only(2));
    let refusal = feasibility::check(&federation.state, request, &planned.placement).unwrap_err();
    assert_eq!(refusal.code, Code::NoCapacity);
    let reply = federation.ok(Command::PlaceRequests(PlaceRequests { placements: vec![planned] })).reply.unwrap();
    match reply {
        ReplyBody::Placed { leases, refused } => assert_eq!((leases.len(), refused.len()), (0, 1)),
        other => panic!("{other:?}"),
    }
    // Policy refuses a forged placement at a donor whose terms forbid the delivery.
    federation.offer("south", offer(2, &[("n1", 8, device(81_559, Sharing::Exclusive))]));
    federation.offer("north", offer(3, &[("n1", 8, device(81_559, Sharing::Exclusive))]));
    let mut forged = scheduler::plan(&federation.state, 1).placements.remove(0).placement;
    forged.donor = cluster("south");
    assert_eq!(feasibility::check(&federation.state, request, &forged).unwrap_err().code, Code::PolicyDenied);
}

#[test]
fn an_ill_donor_keeps_the_leases_it_serves() {
    let mut federation = Federation::ready();
    federation.submit(by_virtual_node(1));
    let lease = federation.place()[0];
    let peering = federation.state.leases[&lease].peering;
    federation.shake_hands(peering, 1);
    federation.activate(lease);
    federation.offer("north", by_namespace_only(2));
    federation.ok(Command::RenewLease(RenewLease { lease, duration: Millis(0), may_shorten: false }));
    assert!(federation.state.leases[&lease].state.is_in_force());
}

/// A later request may name the rare product.
#[test]
fn the_rarest_suitable_product_is_not_taken_first() {
    for [rare, common] in [["NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"], ["NVIDIA-H100-PCIe", "NVIDIA-H100-80GB-HBM3"]]
    {
        let mut federation = Federation::ready();
        let of = |name: &str| Device { product_name: name.into(), ..device(81_559, Sharing::Exclusive) };
        let nodes: Vec<(String, &str)> =
            (0..9).map(|at| (format!("n{at}"), if at == 4 { rare } else { common })).collect();
        let nodes: Vec<_> = nodes.iter().map(|(name, product)| (name.as_str(), 8, of(product))).collect();
        federation.offer("north", offer(2, &nodes));
        federation.offer("south", offer(2, &[]));
        for _ in 0..24 {
            federation.submit(spec(1, Share::Whole, "big"));
            federation.place();
        }
        let rarest = federation.state.occupancy().node(&cluster("north"), &node("n4"));
        assert!(rarest.is_none(), "of {rare}: {rarest:?}");
    }
}

/// State that a planner keeps between plans delays no request.
#[test]
fn a_kept_planner_finds_what_a_fresh_one_finds() {
    let mut federation = Federation::ready();
    let mut planner = Planner::default();
    let mut leases = Vec::new();
    for round in 0..40_u32 {
        let share = if round % 3 == 0 { Share::Milli(250) } else { Share::Whole };
        federation.submit(spec(if round % 3 == 0 { 1 } else { 1 + round % 4 }, share, "big"));
        if round == 5 {
            // From here on the devices of `south` can be shared.
            let shared = device(81_559, Sharing::Fractional { step_milli: 50 });
            federation.offer("south", offer(2, &[("s1", 4, shared.clone()), ("s2", 2, shared)]));
        }
        // This plan is never applied.
        let lost = planner.plan(&federation.state, 8);
        let plan = planner.plan(&federation.state, 8);
        assert_eq!(lost, plan, "round {round}");
        let fresh = scheduler::plan(&federation.state, 8);
        let served = |plan: &Plan| plan.placements.iter().map(|placed| placed.request).collect::<Vec<_>>();
        assert_eq!(served(&plan), served(&fresh), "round {round}");
        let placed = federation.ok(Command::PlaceRequests(PlaceRequests { placements: plan.placements }));
        let Ok(ReplyBody::Placed { leases: new, refused }) = placed.reply else { panic!("{placed:?}") };
        assert!(refused.is_empty(), "round {round}: {refused:?}");
        leases.extend(new);
        if round % 2 == 0 && !leases.is_empty() {
            let lease = leases.remove(0);
            let donor = federation.state.leases[&lease].placement.donor.to_string();
            federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
            federation.report_lease(&donor, lease, LeaseOutcome::Clean);
        }
    }
    assert!(leases.len() > 4);
}

/// Packing chooses the node: shares fill devices that are partly in use, and leave the empty node for the gang.
#[test]
fn shares_leave_nodes_free_for_queued_gangs() {
    let mut federation = Federation::ready();
    let shared = device(81_559, Sharing::Fractional { step_milli: 50 });
    federation.offer("south", offer(2, &[("s1", 4, shared.clone()), ("s2", 2, shared)]));
    let mut only_south = spec(1, Share::Milli(500), "big");
    only_south.allow_donors = vec![cluster("south")];
    for _ in 0..4 {
        federation.submit(only_south.clone());
    }
    let mut gang = spec(4, Share::Whole, "big");
    gang.topology.same_node = true;
    gang.allow_donors = vec![cluster("south")];
    federation.submit(gang);
    assert_eq!(federation.place().len(), 5, "four halves fill the small node, and the gang has the other");
}

/// A request for 1/20 takes 1/10 of a device that MPS shares in ten, and 1/20 of one with fractional sharing. The
/// latter serves it: on another node, on the same node, and under another resource name.
#[test]
fn a_share_is_placed_where_it_wastes_least() {
    let mps = device(81_559, Sharing::Mps { shares: 10 });
    let any = device(81_559, Sharing::Fractional { step_milli: 50 });
    let shared = Device { resource_name: "nvidia.com/gpu.shared".into(), ..mps.clone() };
    let mut both = offer(2, &[("s1", 2, mps.clone())]);
    both.nodes.get_mut(&node("s1")).unwrap().devices[1] = any.clone();
    for offer in [
        offer(2, &[("s1", 1, mps.clone()), ("s2", 1, any.clone())]),
        offer(2, &[("s1", 1, any.clone()), ("s2", 1, mps.clone())]),
        offer(2, &[("s1", 1, shared), ("s2", 1, any)]),
        both,
    ] {
        for count in [1, 2] {
            let mut federation = Federation::ready();
            federation.offer("north", self::offer(2, &[]));
            federation.offer("south", offer.clone());
            let asked = RequestSpec {
                topology: Topology { same_node: true, ..Topology::default() },
                ..spec(count, Share::Milli(50), "big")
            };
            let quote = explain::quote(&federation.state, &asked);
            assert_eq!(quote.placements[0].milli(), 50 * u64::from(count), "{quote:?}");
            // When that device is full, the costlier one serves.
            federation.submit(spec(1, Share::Whole, "big"));
            federation.submit(spec(1, Share::Milli(50), "big"));
            assert_eq!(federation.place().len(), 2);
        }
    }
}

#[test]
fn isolation_excludes_the_ways_of_sharing_that_give_less() {
    let device = |sharing| device(40_960, sharing);
    let ways = [
        device(Sharing::TimeSlicing { replicas: 4 }),
        device(Sharing::Mps { shares: 4 }),
        device(Sharing::Fractional { step_milli: 50 }),
        device(Sharing::Exclusive),
        mig::a100_that_is_cut(),
    ];
    // By level, whether each way serves memory of a device.
    for (isolation, expected) in [
        (Isolation::None, [true; 5]),
        (Isolation::Memory, [false, true, true, true, true]),
        (Isolation::Hardware, [false, false, false, true, true]),
    ] {
        for (way, expected) in ways.iter().zip(expected) {
            let mut federation = Federation::ready();
            federation.offer("south", offer(2, &[("s1", 1, way.clone())]));
            let mut asked = spec(1, Share::MemoryMib(4_096), "small");
            asked.gpus.isolation = isolation;
            let quote = explain::quote(&federation.state, &asked);
            assert_eq!(quote.placements.len(), usize::from(expected), "{isolation:?} {:?}", way.sharing);
            federation.submit(asked);
            assert_eq!(federation.place().len(), usize::from(expected), "{isolation:?} {:?}", way.sharing);
        }
    }
}

#[test]
fn missing_isolation_is_named_with_a_remedy() {
    let mut federation = Federation::ready();
    let sliced = device(40_960, Sharing::TimeSlicing { replicas: 4 });
    let mps = device(40_960, Sharing::Mps { shares: 4 });
    let obstacle = |federation: &Federation, isolation| {
        let mut asked = spec(1, Share::Milli(250), "small");
        asked.gpus.isolation = isolation;
        let donors = explain::explain(&federation.state, &asked).donors;
        donors.into_iter().find(|verdict| verdict.donor == cluster("south")).unwrap().obstacle
    };
    federation.offer("south", offer(2, &[("s1", 1, sliced.clone())]));
    let found = obstacle(&federation, Isolation::Memory).unwrap();
    assert_eq!(found.code, "not-isolated");
    assert!(found.reason.ends_with("with isolation memory, only time-slicing"), "{}", found.reason);
    assert!(found.unblock.starts_with("ask without isolation, or ask its owner to lend"), "{}", found.unblock);
    federation.offer("south", offer(3, &[("s1", 1, sliced), ("s2", 1, mps)]));
    let found = obstacle(&federation, Isolation::Hardware).unwrap();
    assert!(found.reason.ends_with("with isolation hardware, only mps and time-slicing"), "{}", found.reason);
    assert!(found.unblock.starts_with("ask for isolation memory, or for none"), "{}", found.unblock);
    assert_eq!(obstacle(&federation, Isolation::Memory), None);
    // Waiting helps once the isolated device is free.
    let mut four = spec(4, Share::Milli(250), "small");
    four.gpus.isolation = Isolation::Memory;
    federation.submit(four);
    assert_eq!(federation.place().len(), 1);
    let found = obstacle(&federation, Isolation::Memory).unwrap();
    assert_eq!(found.code, "not-isolated");
    assert!(found.reason.contains("room for 0 of 1 shares") && found.unblock.starts_with("wait"), "{found:?}");
}

/// A forged placement on a device with too little isolation.
#[test]
fn apply_refuses_devices_that_isolate_too_little() {
    let mut federation = Federation::ready();
    federation.offer("south", offer(2, &[("s1", 1, device(40_960, Sharing::Mps { shares: 4 }))]));
    let mut asked = spec(1, Share::Milli(250), "small");
    asked.gpus.isolation = Isolation::Memory;
    let request = federation.submit(asked);
    let planned = scheduler::plan(&federation.state, 1).placements.remove(0);
    assert_eq!(planned.request, request);
    federation.offer("south", offer(3, &[("s1", 1, device(40_960, Sharing::TimeSlicing { replicas: 4 }))]));
    let refused = boxes::refusal(&mut federation, planned);
    assert!(refused.contains("is not free any more"), "{refused}");
}
