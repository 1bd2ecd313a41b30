//! Requests that are placed together.

use std::collections::BTreeSet;

use comity_core::demand::{RequestSpec, Share, Topology};
use comity_core::inventory::Sharing;
use comity_core::scheduler;
use comity_types::RequestId;
use proptest::prelude::*;

use super::federation::{Federation, cluster, device, offer, spec};

/// One donor whose nodes have these numbers of GPUs.
fn donor(nodes: &[usize]) -> Federation {
    let mut federation = Federation::ready();
    let big = device(81_559, Sharing::Exclusive);
    let names = ["n1", "n2", "n3", "n4", "n5"];
    let nodes: Vec<_> = names.iter().zip(nodes).map(|(name, gpus)| (*name, *gpus, big.clone())).collect();
    federation.offer("north", offer(2, &nodes));
    federation.offer("south", offer(2, &[]));
    federation
}

/// A request for GPUs of one node.
fn together(count: u32) -> RequestSpec {
    let topology = Topology { same_node: true, ..Topology::default() };
    RequestSpec { topology, ..spec(count, Share::Whole, "big") }
}

/// Places the same requests one at a time, and in one plan. Returns all, those placed each way, and GPUs lent each way.
fn both_ways(nodes: &[usize], asked: &[u32]) -> (Vec<RequestId>, [BTreeSet<RequestId>; 2], [u64; 2]) {
    let mut federation = donor(nodes);
    let ids: Vec<RequestId> = asked.iter().map(|count| federation.submit(together(*count))).collect();
    let mut plain = Federation { state: federation.state.clone(), log: Vec::new(), now: federation.now };
    loop {
        let placements = scheduler::plan(&plain.state, 1).placements;
        if placements.is_empty() {
            break;
        }
        plain.ok(comity_core::Command::PlaceRequests(comity_core::command::PlaceRequests { placements }));
    }
    federation.place();
    let placed = |federation: &Federation| -> BTreeSet<RequestId> {
        ids.iter().filter(|id| federation.state.requests[id].lease.is_some()).copied().collect()
    };
    let lent = |federation: &Federation| federation.state.occupancy().lent_milli(&cluster("north")) / 1_000;
    let found = [placed(&plain), placed(&federation)];
    let gpus = [lent(&plain), lent(&federation)];
    (ids, found, gpus)
}

/// A donor with `nodes` nodes of four GPUs, and waiting requests for GPUs of one node.
fn long_queue(nodes: usize, asked: impl Iterator<Item = u32>) -> (Federation, Vec<RequestId>) {
    let mut federation = Federation::ready();
    let (big, names) = (device(81_559, Sharing::Exclusive), (0..nodes).map(|node| format!("n{node:03}")));
    let names: Vec<String> = names.collect();
    let nodes: Vec<_> = names.iter().map(|name| (name.as_str(), 4, big.clone())).collect();
    federation.offer("north", offer(2, &nodes));
    federation.offer("south", offer(2, &[]));
    let ids = asked.map(|count| federation.submit(together(count))).collect();
    (federation, ids)
}

/// Requests that a plan places, in its order.
fn order_of(plan: &scheduler::Plan) -> Vec<RequestId> {
    plan.placements.iter().map(|placed| placed.request).collect()
}

#[test]
fn a_long_queue_that_fits_is_placed_largest_first() {
    let (mut federation, ids) = long_queue(40, (0..90).map(|number| if number < 70 { 1 } else { 4 }));
    let (small, large) = ids.split_at(70);
    let plan = scheduler::plan(&federation.state, 100);
    assert_eq!(order_of(&plan), [large, small].concat());
    // A plan of 68 placements takes the next 68 in the order of the queue, and all of these are small.
    assert_eq!(order_of(&scheduler::plan(&federation.state, 68)), small[..68]);
    assert_eq!(federation.place().len(), ids.len());
}

#[test]
fn a_long_queue_that_does_not_fit_is_served_in_order() {
    let (mut federation, ids) = long_queue(20, (0..90).map(|number| if number == 65 { 4 } else { 1 }));
    let plan = scheduler::plan(&federation.state, 100);
    let served: Vec<RequestId> = ids.iter().copied().filter(|id| *id != ids[65]).take(80).collect();
    assert_eq!(order_of(&plan)[..65], served[..65]);
    // The abandoned attempt, largest first, leaves no trace: every GPU is lent, and the next plan is the same.
    let gpus: u64 = plan.placements.iter().map(|placed| placed.placement.milli()).sum();
    assert_eq!(gpus, 80_000);
    let mut kept = scheduler::Planner::default();
    for _ in 0..3 {
        assert!(kept.plan(&federation.state, 100) == plan);
    }
    assert_eq!(federation.place().len(), plan.placements.len());
}

/// Next pseudo-random number, by a linear congruential generator: each run measures the same cases.
fn next(number: &mut u64) -> u64 {
    *number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *number >> 33
}

#[test]
fn more_requests_fit_when_placed_together() {
    let (mut number, mut one_by_one, mut in_one_plan, mut better) = (7, 0, 0, 0);
    for _ in 0..60 {
        let nodes: Vec<usize> = (0..3).map(|_| 4 + next(&mut number) as usize % 5).collect();
        let asked: Vec<u32> = (0..9).map(|_| 1 + u32::try_from(next(&mut number) % 5).unwrap()).collect();
        let (_, _, [plain, together]) = both_ways(&nodes, &asked);
        (one_by_one, in_one_plan) = (one_by_one + plain, in_one_plan + together);
        better += u64::from(together > plain);
    }
    println!("one by one {one_by_one} GPUs are lent, in one plan {in_one_plan}; more in {better} of 60 cases");
    assert!(in_one_plan > one_by_one && better > 0, "{in_one_plan} of {one_by_one}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// If placing together changes who is placed, then the first affected request in order is placed.
    #[test]
    fn placing_together_drops_no_request_for_later_ones(
        nodes in proptest::collection::vec(2..9_usize, 1..5),
        asked in proptest::collection::vec(1..7_u32, 1..14),
    ) {
        let (order, [plain, together], _) = both_ways(&nodes, &asked);
        let first = order.iter().find(|id| plain.contains(id) != together.contains(id));
        prop_assert!(first.is_none_or(|id| together.contains(id)), "{:?} in place of {:?}", together, plain);
    }
}
