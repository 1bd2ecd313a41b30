//! Devices whose MIG layouts the agent knows.

use super::*;
use crate::mig::device_layout::DeviceLayout;
use crate::mig::mig_book::{BookedDevice, NodeBook};

fn cut(instances: &[(u8, &str)], leased: &[u8], may_cut: bool) -> BookedDevice {
    let instances = instances.iter().map(|(start, profile)| (*start, (*profile).to_owned())).collect();
    BookedDevice { layout: DeviceLayout::Cut(instances), leased: leased.iter().copied().collect(), may_cut }
}

fn whole() -> BookedDevice {
    BookedDevice { layout: DeviceLayout::Whole, leased: BTreeSet::new(), may_cut: false }
}

/// The devices of a node with these counts; local pods use some of them.
fn devices(booked: Vec<BookedDevice>, counts: &[(&str, &str)], local: &[(&str, u32)], reserve: u32) -> Vec<Device> {
    let mut raw = raw_node("gpu-1");
    set_counts(&mut raw, counts);
    set_labels(&mut raw, &[("mig.strategy", "mixed"), ("mig.config.state", "success")]);
    let mut facts = NodeFacts::of(&read::<core::Node>(&raw)).unwrap();
    facts.layouts = Some(NodeBook::Known(booked));
    let mut names = Names::default();
    let pods: Vec<PodFacts> = local
        .iter()
        .filter_map(|(resource, count)| {
            names.facts_of(&read(&raw_pod("research", resource, "gpu-1", resource, *count)))
        })
        .collect();
    let reserve = LocalReserve { gpus_per_node: reserve, ..LocalReserve::default() };
    let settings = InventorySettings { salt: TEST_SALT, reserve, rdma: Vec::new() };
    let built = build_nodes([&facts], &pods, &Guests::default(), &BTreeMap::new(), &DraDevices::default(), &settings);
    built.nodes[0].devices.clone()
}

fn layout(device: &Device) -> sharing::MigLayout {
    match mode(device) {
        sharing::Mode::Mig(mig) => mig.layout.clone().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn local_starts(device: &Device) -> Vec<u32> {
    layout(device).instances.iter().filter(|instance| instance.local).map(|instance| instance.start).collect()
}

const HALVES: &[(u8, &str)] = &[(0, "3g.40gb"), (4, "3g.40gb")];
const THREE_G: &str = "nvidia.com/mig-3g.40gb";

#[test]
fn an_empty_device_is_offered_for_cutting_and_a_used_profile_is_not() {
    let booked = || vec![whole(), cut(HALVES, &[], true), cut(&[(0, "7g.80gb")], &[], true), cut(&[], &[], true)];
    let counts = [("nvidia.com/gpu", "1"), (THREE_G, "2"), ("nvidia.com/mig-7g.80gb", "1")];
    let idle = devices(booked(), &counts, &[], 0);
    assert_eq!(idle.iter().map(|device| device.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(matches!(mode(&idle[0]), sharing::Mode::Exclusive(_)) && idle[0].resource_name == "nvidia.com/gpu");
    assert!(idle[1..].iter().all(|device| layout(device).repartition && device.resource_name == "nvidia.com/mig"));
    assert!(idle.iter().all(|device| device.memory_mib == 81_559 && device.local_use_milli == 0));

    let used = devices(booked(), &counts, &[(THREE_G, 1), ("nvidia.com/gpu", 1)], 0);
    assert_eq!(used.iter().map(|device| device.local_use_milli).collect::<Vec<_>>(), [1_000, 500, 0, 0]);
    assert!(!layout(&used[1]).repartition && layout(&used[2]).repartition);
}

#[test]
fn local_use_spares_the_instances_of_leases_as_long_as_it_can() {
    let booked = || vec![cut(HALVES, &[0], false), cut(HALVES, &[0, 4], false)];
    for (used, first, second) in [(0, vec![], vec![]), (1, vec![4], vec![]), (2, vec![4], vec![0])] {
        let devices = devices(booked(), &[(THREE_G, "4")], &[(THREE_G, used)], 0);
        assert_eq!((local_starts(&devices[0]), local_starts(&devices[1])), (first, second), "{used} in use");
    }
    // An unhealthy instance is nobody's, so that the lease keeps its own.
    let mut raw = [(THREE_G, "3")];
    assert_eq!(local_starts(&devices(booked(), &raw, &[], 0)[0]), [4]);
    raw[0].1 = "0";
    let sick = devices(booked(), &raw, &[], 0);
    assert_eq!((local_starts(&sick[0]), local_starts(&sick[1])), (vec![4], vec![]));
}

#[test]
fn what_is_held_back_is_not_cut() {
    let reserved = devices(vec![cut(HALVES, &[], true), cut(HALVES, &[], true)], &[(THREE_G, "4")], &[], 1);
    assert!(layout(&reserved[0]).repartition && reserved[0].local_use_milli == 0);
    assert!(!layout(&reserved[1]).repartition && reserved[1].local_use_milli == 1_000);
    // The broker refuses an offer of no instance that is never cut.
    let paused = devices(vec![cut(&[], &[], false)], &[], &[], 0);
    assert!(layout(&paused[0]).repartition && paused[0].local_use_milli == 1_000);
}

#[test]
fn unknown_layouts_are_offered_by_number() {
    let mut raw = raw_node("gpu-1");
    set_labels(&mut raw, &[("mig.strategy", "mixed"), ("mig-3g.40gb.product", "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb")]);
    set_counts(&mut raw, &[(THREE_G, "4")]);
    let mut facts = NodeFacts::of(&read::<core::Node>(&raw)).unwrap();
    facts.layouts = Some(NodeBook::Unknown("the label is gone".to_owned()));
    let settings = InventorySettings { salt: TEST_SALT, reserve: LocalReserve::default(), rdma: Vec::new() };
    let built = build_nodes([&facts], [], &Guests::default(), &BTreeMap::new(), &DraDevices::default(), &settings);
    assert_eq!(built.nodes[0].devices.len(), 2);
    let reasons: Vec<&str> = built.not_offered.iter().map(|left| left.reason.as_str()).collect();
    assert_eq!(reasons, ["the label is gone; instances are offered by number"]);
}
