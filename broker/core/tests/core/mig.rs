//! MIG devices: which slots are lent, and which donor lends them.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::command::{AdvertiseOffer, LeaseOutcome, PlaceRequests, ReleaseLease};
use comity_core::demand::Share;
use comity_core::explain;
use comity_core::feasibility;
use comity_core::inventory::{Device, MigInstance, MigLayout, Sharing};
use comity_core::mig::{Board, InUse, Slots};
use comity_core::placement::DeviceShare;
use comity_core::proposal::ProposedPlacement;
use comity_core::scheduler;
use comity_core::{Command, ReplyBody};
use comity_types::{LeaseId, RequestId};
use litemap::LiteMap;
use proptest::prelude::*;

use super::federation::{Federation, cluster, device, node, offer, spec};

/// A device that may be repartitioned, with instances as (profile, first slot, local).
fn mig(instances: &[(&str, u8, bool)]) -> Device {
    with_layout(MigLayout { repartition: true, instances: instances_of(instances) })
}

/// Like [`mig`], but the device is never repartitioned.
fn mig_as_it_is(instances: &[(&str, u8, bool)]) -> Device {
    with_layout(MigLayout { repartition: false, instances: instances_of(instances) })
}

fn instances_of(instances: &[(&str, u8, bool)]) -> BTreeMap<u8, MigInstance> {
    let instance =
        |&(profile, start, local): &(&str, u8, bool)| (start, MigInstance { profile: profile.into(), local });
    instances.iter().map(instance).collect()
}

fn with_layout(layout: MigLayout) -> Device {
    let board = Board::of("NVIDIA-H100-80GB-HBM3", 81_559).unwrap();
    let local = layout.instances.values().filter(|instance| instance.local);
    let local_use_milli = local.map(|instance| board.milli(board.shape(&instance.profile).unwrap().1)).sum();
    let sharing = Sharing::Mig { instances: layout.counts(), layout: Some(layout) };
    Device { local_use_milli, resource_name: "nvidia.com/mig".into(), ..device(81_559, sharing) }
}

/// An A100 of 40 GB with an instance in local use, repartitioned as leases need it.
pub(crate) fn a100_that_is_cut() -> Device {
    let local = MigInstance { profile: "1g.5gb".into(), local: true };
    let layout = MigLayout { repartition: true, instances: BTreeMap::from([(2, local)]) };
    let sharing = Sharing::Mig { instances: layout.counts(), layout: Some(layout) };
    Device {
        product_name: "NVIDIA-A100-SXM4-40GB".into(),
        local_use_milli: 125,
        resource_name: "nvidia.com/mig".into(),
        ..device(40_960, sharing)
    }
}

fn profile(name: &str) -> Share {
    Share::MigProfile(name.into())
}

/// Only `south` offers nodes: these.
fn donor(nodes: &[(&str, Vec<Device>)]) -> Federation {
    let mut federation = Federation::ready();
    federation.offer("north", offer(2, &[]));
    let mut has = offer(2, &[]);
    for (name, devices) in nodes {
        let mut like = offer(2, &[(*name, 0, device(81_559, Sharing::Exclusive))]).nodes.remove(&node(name)).unwrap();
        like.devices = devices.clone().into();
        has.nodes.insert(node(name), like);
    }
    federation.offer("south", has);
    federation
}

/// Node, device and first slots of a lease.
fn places(federation: &Federation, lease: LeaseId) -> Vec<(String, u32, Vec<u8>)> {
    let nodes = &federation.state.leases[&lease].placement.nodes;
    let shares = nodes.iter().flat_map(|(id, part)| part.devices.iter().map(move |(index, share)| (id, index, share)));
    shares.map(|(id, index, share)| (id.to_string(), *index, share.starts())).collect()
}

fn submit(federation: &mut Federation, count: u32, name: &str) -> RequestId {
    federation.submit(spec(count, profile(name), "big"))
}

fn end(federation: &mut Federation, lease: LeaseId) {
    federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
    for side in ["south", "west"] {
        federation.report_lease(side, lease, LeaseOutcome::Clean);
    }
}

#[test]
fn a_lease_of_an_instance_holds_its_slots_until_it_ends() {
    let mut federation = donor(&[("s1", vec![mig(&[])])]);
    submit(&mut federation, 1, "3g.40gb");
    let lease = federation.place()[0];
    assert_eq!(places(&federation, lease), [("s1".to_owned(), 0, vec![4])], "0 stays free for 4g");
    let placement = federation.state.leases[&lease].placement.clone();
    assert_eq!((placement.resource_name.as_str(), placement.resource_count), ("nvidia.com/mig-3g.40gb", 1));
    assert_eq!((placement.profile.as_deref(), placement.milli()), (Some("3g.40gb"), 500));
    let lent = |federation: &Federation| {
        federation.state.occupancy().node(&cluster("south"), &node("s1")).map(|node| node.slots.clone())
    };
    assert_eq!(lent(&federation), Some(LiteMap::from_iter([(0, Slots::span(4, 4))])));
    end(&mut federation, lease);
    assert_eq!(lent(&federation), None);
}

#[test]
fn a_device_without_repartitioning_lends_its_existing_instances() {
    let has = [("1g.10gb", 0, false), ("1g.10gb", 1, true), ("2g.20gb", 2, false), ("1g.10gb", 6, false)];
    let mut federation = donor(&[("s1", vec![mig_as_it_is(&has)])]);
    for _ in 0..3 {
        submit(&mut federation, 1, "1g.10gb");
    }
    submit(&mut federation, 1, "3g.40gb");
    let leases = federation.place();
    let starts: Vec<_> = leases.iter().map(|&lease| places(&federation, lease)[0].2.clone()).collect();
    assert_eq!(starts, [[0], [6]], "not the one that local work holds, and no other is made");
    submit(&mut federation, 1, "2g.20gb");
    let lease = federation.place()[0];
    assert_eq!(places(&federation, lease)[0].2, [2]);
}

#[test]
fn local_instances_keep_their_slots_and_a_device_that_is_held_back_lends_nothing() {
    let held_back = Device { local_use_milli: 1_000, ..mig(&[]) };
    let sick = Device { healthy: false, ..mig(&[]) };
    let mut federation = donor(&[("s1", vec![held_back, sick, mig(&[("1g.10gb+me", 5, true)])])]);
    submit(&mut federation, 1, "3g.40gb");
    submit(&mut federation, 1, "3g.40gb");
    submit(&mut federation, 1, "1g.10gb+me");
    let leases = federation.place();
    assert_eq!(leases.len(), 1, "one half is broken, and the media extension is taken");
    assert_eq!(places(&federation, leases[0]), [("s1".to_owned(), 2, vec![0])]);
}

#[test]
fn devices_in_use_come_before_idle_ones_on_any_node() {
    let mut federation = donor(&[("s1", vec![mig(&[])]), ("s2", vec![mig(&[]), mig(&[("1g.10gb", 6, true)])])]);
    for _ in 0..3 {
        submit(&mut federation, 1, "2g.20gb");
        let lease = federation.place()[0];
        assert_eq!(places(&federation, lease)[0].1, 1, "{:?}", places(&federation, lease));
    }
}

#[test]
fn the_donor_whose_devices_lose_least_lends() {
    let mut federation = donor(&[("s1", vec![mig(&[("1g.10gb", 6, true)])])]);
    federation.offer("north", offer(3, &[("n1", 1, mig(&[]))]));
    for (name, lender) in [("1g.10gb", "south"), ("7g.80gb", "north"), ("4g.40gb", "south")] {
        submit(&mut federation, 1, name);
        let lease = federation.place()[0];
        assert_eq!(federation.state.leases[&lease].placement.donor, cluster(lender), "{name}");
    }
}

#[test]
fn an_existing_instance_is_leased_before_one_is_created() {
    let mut federation = donor(&[("s1", vec![mig(&[]), mig(&[("7g.80gb", 0, false)])])]);
    submit(&mut federation, 1, "7g.80gb");
    let lease = federation.place()[0];
    assert_eq!(places(&federation, lease), [("s1".to_owned(), 1, vec![0])]);
}

#[test]
fn shares_of_one_request_lie_on_one_node_if_they_can() {
    let mut federation = donor(&[("s1", vec![mig(&[])]), ("s2", vec![mig(&[]), mig(&[])])]);
    submit(&mut federation, 5, "2g.20gb");
    let lease = federation.place()[0];
    let taken = places(&federation, lease);
    assert!(taken.iter().all(|(node, _, _)| node == "s2"), "{taken:?}");
    assert_eq!(taken.iter().map(|(_, _, starts)| starts.len()).sum::<usize>(), 5);
    submit(&mut federation, 4, "2g.20gb");
    let lease = federation.place()[0];
    assert_eq!(federation.state.leases[&lease].placement.nodes.len(), 2, "spread where one does not hold them");
}

#[test]
fn a_request_for_memory_takes_the_smallest_sufficient_instance() {
    let mut federation = donor(&[("s1", vec![device(81_559, Sharing::Exclusive)]), ("s2", vec![mig(&[])])]);
    for (memory, name) in [(9_000, "1g.10gb"), (18_000, "1g.20gb"), (36_000, "3g.40gb")] {
        federation.submit(spec(1, Share::MemoryMib(memory), "big"));
        let lease = federation.place()[0];
        let placement = &federation.state.leases[&lease].placement;
        assert_eq!(placement.profile.as_deref(), Some(name));
        assert_eq!(placement.resource_name, format!("nvidia.com/mig-{name}"));
    }
    // A request for more memory than an instance guarantees takes the whole device; requests for whole devices and
    // milli-GPUs take no slots.
    federation.submit(spec(1, Share::MemoryMib(80_000), "big"));
    let lease = federation.place()[0];
    assert_eq!(federation.state.leases[&lease].placement.profile, None);
    for share in [Share::Whole, Share::Milli(125), Share::Milli(1_000)] {
        federation.submit(spec(1, share, "big"));
    }
    assert!(federation.place().is_empty());
}

#[test]
fn apply_refuses_forged_slots() {
    let mut federation =
        donor(&[("s1", vec![mig(&[("1g.10gb", 0, true)])]), ("s2", vec![mig_as_it_is(&[("2g.20gb", 4, false)])])]);
    submit(&mut federation, 1, "1g.10gb");
    federation.place();
    let request = submit(&mut federation, 1, "2g.20gb");
    let good = scheduler::plan(&federation.state, 1).placements.remove(0);
    assert!(feasibility::check(&federation.state, request, &good.placement).is_ok());
    let with = |at: &str, share: DeviceShare| {
        let mut forged = good.placement.clone();
        let mut part = forged.nodes.values().next().unwrap().clone();
        part.devices = LiteMap::from_iter([(0, share)]);
        forged.nodes = LiteMap::from_iter([(node(at), part)]);
        forged
    };
    let share = |slots| DeviceShare { milli: 250, units: 1, slots };
    assert!(feasibility::check(&federation.state, request, &with("s2", share(Slots::span(4, 2)))).is_ok());
    let mut forgeries = vec![
        with("s1", share(Slots::NONE)),
        with("s1", share(Slots::span(0, 2))),
        with("s1", share(Slots::span(3, 2))),
        with("s1", share(Slots::span(6, 2))),
        with("s1", share(Slots::span(4, 1))),
        with("s1", share(Slots::span(2, 4))),
        with("s1", DeviceShare { units: 2, milli: 500, slots: Slots::span(2, 2) }),
        with("s1", DeviceShare { milli: 125, ..share(Slots::span(2, 2)) }),
        with("s2", share(Slots::span(0, 2))),
    ];
    let mut other_name = good.placement.clone();
    other_name.profile = Some("1g.10gb".into());
    forgeries.push(other_name);
    for forged in &forgeries {
        assert!(feasibility::check(&federation.state, request, forged).is_err(), "{forged:?}");
    }
    // A place that one command proposes for two requests goes to one of them.
    let second = submit(&mut federation, 1, "2g.20gb");
    let twice = vec![good.clone(), ProposedPlacement { request: second, ..good }];
    match federation.ok(Command::PlaceRequests(PlaceRequests { placements: twice })).reply.unwrap() {
        ReplyBody::Placed { leases, refused } => assert_eq!((leases.len(), refused.len()), (1, 1)),
        other => panic!("{other:?}"),
    }
}

/// Reason and remedy of `south` when it lacks free slots.
fn words(federation: &Federation, name: &str) -> (String, String) {
    words_for("no-capacity", federation, name)
}

fn words_for(code: &str, federation: &Federation, name: &str) -> (String, String) {
    let explanation = explain::explain(&federation.state, &spec(1, profile(name), "big"));
    let south = explanation.donors.into_iter().find(|verdict| verdict.donor == cluster("south")).unwrap();
    let obstacle = south.obstacle.unwrap();
    assert_eq!(obstacle.code, code, "{obstacle:?}");
    (obstacle.reason, obstacle.unblock)
}

#[test]
fn the_reason_names_the_nearest_start_and_its_holders() {
    let halved = mig(&[("2g.20gb", 0, true), ("2g.20gb", 2, true)]);
    let with_media = mig(&[("1g.10gb+me", 0, true), ("2g.20gb", 2, true)]);
    let mut federation = donor(&[("s1", vec![halved.clone()])]);
    submit(&mut federation, 1, "1g.20gb");
    let small = federation.place()[0];
    assert_eq!(places(&federation, small), [("s1".to_owned(), 0, vec![6])]);
    federation.offer("south", offer(3, &[("s1", 1, halved), ("s2", 1, with_media)]));
    submit(&mut federation, 1, "3g.40gb");
    let large = federation.place()[0];
    assert_eq!(places(&federation, large), [("s2".to_owned(), 0, vec![4])]);
    let (reason, remedy) = words(&federation, "3g.40gb");
    assert_eq!(
        reason,
        "south has no free start for 3g.40gb on 2 devices of class big; nearest is slots 4-7 of device 0 of node s1, \
         taken by 1g.20gb at 6 of a lease"
    );
    assert_eq!(remedy, "wait until that instance is given back");
    // The reason is exact: once that instance is released, there is a start.
    end(&mut federation, small);
    assert!(!explain::quote(&federation.state, &spec(1, profile("3g.40gb"), "big")).placements.is_empty());

    let (reason, remedy) = words(&federation, "7g.80gb");
    let held = "slots 0-7 of device 0 of node s1, taken by 2g.20gb at 0 of local work and 2g.20gb at 2 of local work";
    assert!(reason.ends_with(held), "{reason}");
    assert_eq!(remedy, "wait until those 2 instances are given back; the donor's own work holds some of that");
    federation.offer("south", offer(4, &[("s1", 1, mig(&[("1g.10gb+me", 0, true)]))]));
    let (reason, _) = words(&federation, "1g.10gb+me");
    assert!(reason.contains("on 1 device of class big; nearest is slot 6"), "{reason}");
    federation.offer("south", offer(5, &[("s1", 1, Device { healthy: false, ..mig(&[]) })]));
    let (reason, remedy) = words_for("unhealthy", &federation, "3g.40gb");
    assert!(
        reason.ends_with("for all of them if this were healthy: device 0 of node s1: it is not healthy"),
        "{reason}"
    );
    assert_eq!(remedy, "wait until its owner has reset, repaired or replaced it");
    let held_back = Device { local_use_milli: 1_000, ..mig(&[]) };
    federation.offer("south", offer(6, &[("s1", 1, held_back)]));
    let (reason, remedy) = words(&federation, "3g.40gb");
    assert!(reason.ends_with("1 of them can give nothing now: not healthy, held back, or lent by number"), "{reason}");
    assert_eq!(remedy, "wait until a device can be lent of again");
}

#[test]
fn a_device_lent_by_instance_count_lends_no_slots() {
    let instances = BTreeMap::from([("1g.10gb".to_owned(), 7)]);
    let counted =
        Device { resource_name: "nvidia.com/mig".into(), ..device(81_559, Sharing::Mig { instances, layout: None }) };
    let mut federation = donor(&[("s1", vec![counted])]);
    submit(&mut federation, 1, "1g.10gb");
    let lease = federation.place()[0];
    assert_eq!(places(&federation, lease), [("s1".to_owned(), 0, vec![])]);
    let mut known = offer(3, &[("s1", 1, mig(&[]))]);
    federation.offer("south", known.clone());
    submit(&mut federation, 1, "1g.10gb");
    assert!(federation.place().is_empty(), "which slots that lease holds is not known");
    end(&mut federation, lease);
    assert_eq!(federation.place().len(), 1);
    // An offer with an impossible layout is refused as a whole.
    known.generation = 4;
    for device in known.nodes.iter_mut().flat_map(|(_, node)| &mut node.devices) {
        device.memory_mib = 46_068;
    }
    let refusal =
        federation.refused(Command::AdvertiseOffer(AdvertiseOffer { cluster: cluster("south"), offer: known }));
    assert_eq!(refusal.field, "offer.nodes[s1].devices[0].sharing.mig.layout");
}

#[test]
fn mig_layouts_round_trip_and_format_2_stays_readable() {
    let sharing: Sharing = serde_json::from_str(r#"{"mode":"mig","instances":{"1g.10gb":7}}"#).unwrap();
    let instances = BTreeMap::from([("1g.10gb".to_owned(), 7)]);
    assert_eq!(sharing, Sharing::Mig { instances, layout: None });
    let cut = a100_that_is_cut();
    let text = serde_json::to_string(&cut.sharing).unwrap();
    let layout = r#"{"repartition":true,"instances":[[2,{"profile":"1g.5gb","local":true}]]}"#;
    assert_eq!(text, format!(r#"{{"mode":"mig","instances":{{"1g.5gb":1}},"layout":{layout}}}"#));
    assert_eq!(serde_json::from_str::<Sharing>(&text).unwrap(), cut.sharing);
    let share: DeviceShare = serde_json::from_str(r#"{"milli":142,"units":1}"#).unwrap();
    assert_eq!(share, DeviceShare { milli: 142, units: 1, slots: Slots::NONE });
    assert_eq!(serde_json::to_string(&share).unwrap(), r#"{"milli":142,"units":1}"#);
}

/// Requests that exhaustive search can serve: in order of age, each that fits beside all older ones that fit. It knows
/// only that instances start at valid slots, do not overlap and share one media extension.
fn by_age(board: Board, devices: &[InUse], asked: &[(&str, u32)]) -> BTreeSet<usize> {
    let mut reached = BTreeSet::from([devices.to_vec()]);
    let mut served = BTreeSet::new();
    for (number, &(name, count)) in asked.iter().enumerate() {
        let (_, shape) = board.shape(name).unwrap();
        let mut next = reached.clone();
        for _ in 0..count {
            next = next
                .iter()
                .flat_map(|devices| {
                    (0..devices.len()).flat_map(move |at| {
                        devices[at].starts(shape).map(move |start| {
                            let mut after = devices.clone();
                            after[at] = after[at].with(shape, start);
                            after.sort_unstable();
                            after
                        })
                    })
                })
                .collect();
        }
        if !next.is_empty() {
            reached = next;
            served.insert(number);
        }
    }
    served
}

const PROFILES: [&str; 7] = ["7g.80gb", "4g.40gb", "3g.40gb", "2g.20gb", "1g.20gb", "1g.10gb", "1g.10gb+me"];

/// Mostly small instances, because a large one fills a device alone.
fn some_profile() -> impl Strategy<Value = &'static str> {
    prop_oneof![1 => Just(PROFILES[0]), 9 => proptest::sample::select(&PROFILES[1..])]
}

fn some_device() -> impl Strategy<Value = Device> {
    let local = prop_oneof![
        4 => Just(vec![]),
        1 => Just(vec![("1g.10gb", 2, true)]),
        1 => Just(vec![("2g.20gb", 4, true)]),
        1 => Just(vec![("1g.10gb+me", 6, true), ("2g.20gb", 0, true)]),
    ];
    local.prop_map(|local| mig(&local))
}

fn in_use(device: &Device) -> InUse {
    let (Sharing::Mig { layout: Some(layout), .. }, Some(board)) = (&device.sharing, device.board()) else { panic!() };
    layout.instances.iter().fold(InUse::default(), |in_use, (start, instance)| {
        in_use.with(board.shape(&instance.profile).unwrap().1, *start)
    })
}

/// A regression that random tests found: each of several shares was placed as if it were the last.
#[test]
fn shares_of_a_gang_leave_room_for_each_other_and_for_later_requests() {
    let local = [("2g.20gb", 0, true), ("1g.10gb+me", 6, true)];
    let mut federation = donor(&[("s1", vec![mig(&[]), mig(&local)])]);
    for (name, count) in [("2g.20gb", 1), ("2g.20gb", 3), ("3g.40gb", 1)] {
        submit(&mut federation, count, name);
    }
    assert_eq!(federation.place().len(), 3);
}

#[test]
fn limits_per_request_count_the_fraction_of_each_instance() {
    let mut federation = Federation::ready();
    federation.also(
        "apiVersion: policy.comity.dev/v1\nkind: Quota\nmetadata: {name: one}\nspec: {tenant: team, maxGpusPerRequest: 1}\n",
    );
    let cut = mig(&[]);
    federation.offer("north", offer(2, &[("m1", 2, cut)]));
    federation.offer("south", offer(2, &[]));
    let of = |count| spec(count, Share::MigProfile("1g.10gb".into()), "big");
    assert!(explain::explain(&federation.state, &of(7)).summary.contains("fits on north"));
    let too_many = explain::explain(&federation.state, &of(9)).donors;
    let said = too_many.iter().find_map(|donor| Some(donor.obstacle.as_ref()?.reason.clone())).unwrap();
    assert!(said.contains("allows 1 GPUs in one request, not 1.125"), "{said}");
    let memory = spec(4, Share::MemoryMib(4_096), "big");
    assert!(explain::explain(&federation.state, &memory).summary.contains("fits on north"));
    // The federation's limit of 64 GPUs counts instances in the same way.
    assert!(of(65).check().is_ok());
    federation.submit(of(65));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    /// Waiting requests of one share each: those are placed that exhaustive search would serve in order of age. So if
    /// all of them fit, all are placed, whatever their order.
    #[test]
    fn waiting_requests_are_placed_as_exhaustive_search_would(
        devices in proptest::collection::vec(some_device(), 1..=3),
        asked in proptest::collection::vec(some_profile(), 1..=14),
    ) {
        let asked: Vec<(&str, u32)> = asked.into_iter().map(|name| (name, 1)).collect();
        let states: Vec<InUse> = devices.iter().map(in_use).collect();
        let board = devices[0].board().unwrap();
        let nodes: Vec<(&str, Vec<Device>)> = ["s1", "s2", "s3"].into_iter().zip(devices).map(|(n, d)| (n, vec![d])).collect();
        let mut federation = donor(&nodes);
        let requests: Vec<RequestId> = asked.iter().map(|(name, count)| submit(&mut federation, *count, name)).collect();
        federation.place();
        let placed: BTreeSet<usize> =
            (0..requests.len()).filter(|&at| federation.state.requests[&requests[at]].lease.is_some()).collect();
        prop_assert_eq!(placed, by_age(board, &states, &asked));
    }

    /// The same for requests of several shares, on one node.
    #[test]
    fn waiting_gangs_of_one_node_are_placed_as_exhaustive_search_would(
        devices in proptest::collection::vec(some_device(), 1..=2),
        asked in proptest::collection::vec((some_profile(), 1_u32..=3), 1..=7),
    ) {
        let states: Vec<InUse> = devices.iter().map(in_use).collect();
        let board = devices[0].board().unwrap();
        let mut federation = donor(&[("s1", devices)]);
        let requests: Vec<RequestId> = asked.iter().map(|(name, count)| submit(&mut federation, *count, name)).collect();
        federation.place();
        let placed: BTreeSet<usize> =
            (0..requests.len()).filter(|&at| federation.state.requests[&requests[at]].lease.is_some()).collect();
        prop_assert_eq!(placed, by_age(board, &states, &asked));
    }
}
