//! Placements as an honest broker makes them, and their distortions.

#![expect(clippy::unwrap_used, reason = "tests")]

use comity_agent_model::gpu_demand::GpuDemand;
use comity_agent_model::lease::placement::VirtualFunctions;
use comity_agent_state::record::DonorRecord;
use comity_proto::v1::{RdmaBandwidth, Sharing};
use comity_types::{Delivery, PeeringId, RequestId};
use std::sync::Arc;

use super::*;

const A100: &str = "NVIDIA-A100-SXM4-40GB";

fn device(mode: sharing::Mode) -> Device {
    Device {
        product_name: A100.to_owned(),
        memory_mib: 40_960,
        sharing: Some(Sharing { mode: Some(mode) }),
        healthy: true,
        resource_name: "nvidia.com/gpu".to_owned(),
        ..Device::default()
    }
}

fn exclusive() -> sharing::Mode {
    sharing::Mode::Exclusive(sharing::Exclusive {})
}

fn sliced(replicas: u32) -> sharing::Mode {
    sharing::Mode::TimeSlicing(sharing::TimeSlicing { replicas })
}

fn mig(instances: &[(&str, u32)], layout: Option<sharing::MigLayout>) -> sharing::Mode {
    let instances = instances
        .iter()
        .map(|(profile, count)| sharing::MigInstances { profile: (*profile).to_owned(), count: *count });
    sharing::Mode::Mig(sharing::Mig { instances: instances.collect(), layout })
}

fn node(id: &str, devices: Vec<Device>) -> Node {
    Node { id: id.to_owned(), cpu_milli: 64_000, memory_mib: 256_000, devices, ..Node::default() }
}

fn share(device: u32, milli: u32, units: u32, starts: &[u8]) -> DeviceShare {
    DeviceShare { device, milli, units, mig_starts: starts.to_vec() }
}

fn part(node: &str, devices: Vec<DeviceShare>) -> NodePlacement {
    NodePlacement { node: node.to_owned(), devices, cpu_milli: 4_000, memory_mib: 16_000, functions: Vec::new() }
}

fn lease(nodes: Vec<NodePlacement>, resource: &str, count: u64, profile: &str) -> Lease {
    let placement = Placement {
        nodes,
        resource_name: resource.to_owned(),
        resource_count: count,
        mig_profile: profile.to_owned(),
        ..Placement::new("donor".parse().unwrap())
    };
    let lease = Lease::new(LeaseId(1), RequestId(1), "origin".parse().unwrap(), PeeringId(1));
    Lease { placement: Some(placement), ..lease }
}

fn checked(nodes: &[Node], lease: &Lease) -> Result<AdmittedCapacity, Objection> {
    let (records, desired) = (Records::default(), DesiredState::default());
    let ledger = Ledger::of(&records, &desired);
    check(OwnCapacity { nodes, reserve: LocalReserve::default(), ledger: &ledger }, lease)
}

/// The broker's own arithmetic for each way of sharing: `feasibility/fit/device.rs` of its core.
#[test]
fn placements_of_every_way_of_sharing_are_accepted_with_their_exact_count_only() {
    let layout = || sharing::MigLayout { instances: Vec::new(), repartition: true };
    let mixed = Device { resource_name: "nvidia.com/mig".to_owned(), ..device(mig(&[("1g.5gb", 7)], None)) };
    let one = |device: Device| vec![node("a", vec![device])];
    let on_a = |shares: Vec<DeviceShare>| vec![part("a", shares)];
    let gpu = "nvidia.com/gpu";
    let cases: Vec<(&str, Vec<Node>, Lease)> = vec![
        ("a whole device", one(device(exclusive())), lease(on_a(vec![share(0, 1_000, 1, &[])]), gpu, 1, "")),
        ("without a mode", one(Device { sharing: None, ..device(exclusive()) }), {
            lease(on_a(vec![share(0, 1_000, 1, &[])]), gpu, 1, "")
        }),
        ("a slice of four", one(device(sliced(4))), lease(on_a(vec![share(0, 250, 1, &[])]), gpu, 1, "")),
        ("two shares of two slices each", one(device(sliced(4))), {
            lease(on_a(vec![share(0, 1_000, 2, &[])]), gpu, 4, "")
        }),
        ("three thirds", one(device(sliced(3))), lease(on_a(vec![share(0, 999, 3, &[])]), gpu, 3, "")),
        ("all thirds in one share", one(device(sliced(3))), lease(on_a(vec![share(0, 1_000, 1, &[])]), gpu, 3, "")),
        ("MPS shares", one(device(sharing::Mode::Mps(sharing::Mps { shares: 7 }))), {
            lease(on_a(vec![share(0, 852, 3, &[])]), gpu, 6, "")
        }),
        ("fractions", one(device(sharing::Mode::Fractional(sharing::Fractional { step_milli: 100 }))), {
            lease(on_a(vec![share(0, 800, 2, &[])]), gpu, 2, "")
        }),
        (
            "the whole of a device whose step does not divide it",
            { one(device(sharing::Mode::Fractional(sharing::Fractional { step_milli: 300 }))) },
            { lease(on_a(vec![share(0, 1_000, 1, &[])]), gpu, 1, "") },
        ),
        ("MIG by number", one(device(mig(&[("1g.5gb", 3), ("4g.20gb", 1)], None))), {
            lease(on_a(vec![share(0, 500, 2, &[])]), gpu, 2, "1g.5gb")
        }),
        ("MIG with a resource for each profile", one(mixed), {
            lease(on_a(vec![share(0, 284, 2, &[])]), "nvidia.com/mig-1g.5gb", 2, "1g.5gb")
        }),
        ("MIG by slots", one(device(mig(&[], Some(layout())))), {
            lease(on_a(vec![share(0, 250, 2, &[0, 3])]), gpu, 2, "1g.5gb")
        }),
        ("a large instance", one(device(mig(&[], Some(layout())))), {
            lease(on_a(vec![share(0, 500, 1, &[4])]), gpu, 1, "3g.20gb")
        }),
        ("two nodes", vec![node("a", vec![device(exclusive())]), node("b", vec![device(exclusive()); 2])], {
            let parts = vec![
                part("a", vec![share(0, 1_000, 1, &[])]),
                part("b", vec![share(0, 1_000, 1, &[]), share(1, 1_000, 1, &[])]),
            ];
            lease(parts, gpu, 3, "")
        }),
    ];
    for (name, nodes, lease) in cases {
        let capacity = checked(&nodes, &lease).unwrap_or_else(|objection| panic!("{name}: {objection:?}"));
        let placement = lease.placement.as_ref().unwrap();
        assert!(capacity.is_of(placement), "{name}");
        for off in [placement.resource_count - 1, placement.resource_count + 1] {
            let mut wrong = lease.clone();
            wrong.placement.as_mut().unwrap().resource_count = off;
            assert!(matches!(checked(&nodes, &wrong), Err(Objection::Disagrees(_))), "{name}: {off}");
            assert!(!capacity.is_of(wrong.placement.as_ref().unwrap()), "{name}");
        }
        // The same count by more or less of a device.
        for milli in [1, placement.nodes[0].devices[0].milli + 1, 1_001, u32::MAX] {
            let mut wrong = lease.clone();
            wrong.placement.as_mut().unwrap().nodes[0].devices[0].milli = milli;
            assert!(matches!(checked(&nodes, &wrong), Err(Objection::Disagrees(_))), "{name}: {milli} thousandths");
        }
        let mut wrong = lease.clone();
        wrong.placement.as_mut().unwrap().resource_name = "amd.com/gpu".to_owned();
        assert!(matches!(checked(&nodes, &wrong), Err(Objection::Disagrees(_))), "{name}: another resource");
    }
}

#[test]
fn what_is_not_on_the_node_is_refused() {
    let two = [node("a", vec![device(exclusive()); 2]), node("b", vec![device(exclusive())])];
    let whole = |device| share(device, 1_000, 1, &[]);
    let layout = sharing::MigLayout { instances: Vec::new(), repartition: true };
    let cut = [node("a", vec![device(mig(&[], Some(layout)))])];
    let gpu = "nvidia.com/gpu";
    let cases: Vec<(&str, &[Node], Lease)> = vec![
        ("an unknown node", &two, lease(vec![part("c", vec![whole(0)])], gpu, 1, "")),
        ("a device of another node", &two, lease(vec![part("b", vec![whole(1)])], gpu, 1, "")),
        ("a device twice", &two, lease(vec![part("a", vec![whole(0), whole(0)])], gpu, 2, "")),
        ("a node twice", &two, { lease(vec![part("a", vec![whole(0)]), part("a", vec![whole(1)])], gpu, 2, "") }),
        ("a node without devices beside another", &two, {
            lease(vec![part("a", vec![whole(0)]), part("b", Vec::new())], gpu, 1, "")
        }),
        ("no share", &two, lease(vec![part("a", vec![share(0, 1_000, 0, &[])])], gpu, 1, "")),
        ("slots of a device without them", &two, lease(vec![part("a", vec![share(0, 1_000, 1, &[0])])], gpu, 1, "")),
        ("one slot twice", &cut, lease(vec![part("a", vec![share(0, 250, 2, &[0, 0])])], gpu, 2, "1g.5gb")),
        ("a slot where none starts", &cut, lease(vec![part("a", vec![share(0, 500, 1, &[1])])], gpu, 1, "3g.20gb")),
        ("an instance without a slot", &cut, lease(vec![part("a", vec![share(0, 125, 1, &[])])], gpu, 1, "1g.5gb")),
        ("an unknown profile", &cut, lease(vec![part("a", vec![share(0, 125, 1, &[0])])], gpu, 1, "9g.5gb")),
        ("no placement", &two, Lease { placement: None, ..lease(Vec::new(), gpu, 0, "") }),
    ];
    for (name, nodes, lease) in cases {
        assert!(matches!(checked(nodes, &lease), Err(Objection::Disagrees(_))), "{name}");
    }
}

#[test]
fn cpu_memory_and_functions_are_limited_by_the_node_its_reserve_and_the_demand() {
    let rdma = RdmaBandwidth { resource: "ib_vf".to_owned(), functions: 4, ..RdmaBandwidth::default() };
    let nodes = [Node { rdma: vec![rdma], ..node("a", vec![device(exclusive()); 2]) }];
    let with = |change: &dyn Fn(&mut NodePlacement)| {
        let mut part = part("a", vec![share(0, 1_000, 1, &[])]);
        change(&mut part);
        lease(vec![part], "nvidia.com/gpu", 1, "")
    };
    let functions = |count| vec![VirtualFunctions { resource: "ib_vf".to_owned(), count }];
    assert!(checked(&nodes, &with(&|part| part.cpu_milli = 64_000)).is_ok());
    assert!(checked(&nodes, &with(&|part| part.functions = functions(4))).is_ok());
    for (name, lease) in [
        ("CPU", with(&|part| part.cpu_milli = 64_001)),
        ("memory", with(&|part| part.memory_mib = 256_001)),
        ("functions", with(&|part| part.functions = functions(5))),
        ("overflow", with(&|part| part.memory_mib = u64::MAX)),
    ] {
        assert!(matches!(checked(&nodes, &lease), Err(Objection::Disagrees(_))), "{name}");
    }
    let (records, desired) = (Records::default(), DesiredState::default());
    let ledger = Ledger::of(&records, &desired);
    let reserve = LocalReserve { gpus_per_node: 1, cpu_milli: 60_000, memory_mib: 240_000 };
    let own = OwnCapacity { nodes: &nodes, reserve, ledger: &ledger };
    assert!(check(own, &with(&|_| {})).is_ok(), "exactly what is left");
    assert!(check(own, &with(&|part| part.cpu_milli += 1)).is_err());
    assert!(check(own, &with(&|part| part.memory_mib += 1)).is_err());

    let demand = |count, cpu_milli_per_gpu| GpuDemand {
        count,
        cpu_milli_per_gpu,
        memory_mib_per_gpu: 16_000,
        ..GpuDemand::default()
    };
    for (gpus, is_right) in [(demand(1, 4_000), true), (demand(2, 4_000), false), (demand(1, 3_999), false)] {
        let asked = Lease { gpus: Some(gpus.clone()), ..with(&|_| {}) };
        assert_eq!(checked(&nodes, &asked).is_ok(), is_right, "{gpus:?}");
    }
}

#[test]
fn leases_of_one_device_add_up_and_one_that_goes_is_waited_for() {
    let layout = || sharing::MigLayout { instances: Vec::new(), repartition: true };
    let gpu = "nvidia.com/gpu";
    let cases: [(&str, Device, DeviceShare, DeviceShare, &str, bool); 5] = [
        ("two halves", device(sliced(2)), share(0, 500, 1, &[]), share(0, 500, 1, &[]), "", true),
        ("three quarters and two", device(sliced(4)), share(0, 750, 3, &[]), share(0, 500, 2, &[]), "", false),
        ("a whole twice", device(exclusive()), share(0, 1_000, 1, &[]), share(0, 1_000, 1, &[]), "", false),
        (
            "other slots",
            device(mig(&[], Some(layout()))),
            share(0, 125, 1, &[0]),
            share(0, 125, 1, &[1]),
            "1g.5gb",
            true,
        ),
        (
            "a slot twice",
            device(mig(&[], Some(layout()))),
            share(0, 125, 1, &[1]),
            share(0, 125, 1, &[1]),
            "1g.5gb",
            false,
        ),
    ];
    for (name, device, first, second, profile, fits) in cases {
        let nodes = [node("a", vec![device])];
        let of = |share: DeviceShare| lease(vec![part("a", vec![share.clone()])], gpu, share.units.into(), profile);
        let (first, second) = (of(first), Lease { id: LeaseId(2), ..of(second) });
        let record = DonorRecord {
            capacity: checked(&nodes, &first).unwrap(),
            ..DonorRecord::new(first.id, 1, Delivery::Namespace)
        };
        let mut records = Records::default();
        records.donors.insert(first.id, Arc::new(record.clone()));
        let against = |records: &Records, desired: &DesiredState| {
            let ledger = Ledger::of(records, desired);
            check(OwnCapacity { nodes: &nodes, reserve: LocalReserve::default(), ledger: &ledger }, &second)
        };
        let wanted = Lease { state: Some(comity_types::LeaseState::Active), ..first.clone() };
        let desired = DesiredState { leases: vec![wanted], ..DesiredState::default() };
        assert_eq!(against(&records, &desired).is_ok(), fits, "{name}");
        if !fits {
            assert_eq!(against(&records, &DesiredState::default()), Err(Objection::Waits), "{name}");
        }
        records.donors.insert(first.id, Arc::new(DonorRecord { removed: true, ..record.clone() }));
        assert!(against(&records, &desired).is_ok(), "{name}: its capacity is free again");
        // Two of one plan.
        let nothing = Records::default();
        let mut ledger = Ledger::of(&nothing, &desired);
        ledger.admit(record);
        let own = OwnCapacity { nodes: &nodes, reserve: LocalReserve::default(), ledger: &ledger };
        assert_eq!(check(own, &second).is_ok(), fits, "{name}");
    }
}
