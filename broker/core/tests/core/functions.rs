//! Bandwidth that is lent by whole virtual functions.

use std::collections::BTreeMap;

use comity_core::demand::{RequestSpec, Topology};
use comity_core::explain;
use comity_core::inventory::{Node, NodeWiring, RdmaFunctions};
use comity_core::proposal::{PlacementKind, ProposedPlacement};
use comity_core::scheduler;
use comity_types::LeaseId;
use proptest::prelude::*;

use super::boxes::{asking, end, federation, l40s, obstacle, offering, placed, refusal, waits};
use super::federation::{Federation, cluster, node};

const VF: &str = "nvidia.com/ib_vf";

/// Eight GPUs, and `count` functions of `each` Gbit/s on "ib"; local work has `local` of them.
fn with_functions(count: u32, each: u32, local: u32) -> Node {
    let functions = RdmaFunctions { resource: VF.to_owned(), count, local };
    let wiring = NodeWiring {
        rdma_gbits: BTreeMap::from([("ib".to_owned(), count * each)]),
        rdma_functions: BTreeMap::from([("ib".to_owned(), functions)]),
        ..l40s().wiring
    };
    Node { wiring, ..l40s() }
}

fn over_nodes(count: u32, rdma_gbits: u32) -> RequestSpec {
    let mut spec = asking(count, Topology { rdma_gbits, ..Topology::default() });
    (spec.gpus.cpu_milli_per_gpu, spec.gpus.memory_mib_per_gpu) = (100, 64);
    spec
}

/// Gbit/s and functions that a lease takes from each node.
fn taken(federation: &Federation, lease: LeaseId) -> Vec<(u32, Option<u32>)> {
    let parts = federation.state.leases[&lease].placement.nodes.values();
    parts
        .map(|part| (part.rdma_gbits[&"ib".to_owned()], part.rdma_functions.get("ib").map(|taken| taken.count)))
        .collect()
}

#[test]
fn requested_bandwidth_is_rounded_up_to_whole_functions() {
    let plain =
        Node { wiring: NodeWiring { rdma_gbits: BTreeMap::from([("ib".to_owned(), 400)]), ..l40s().wiring }, ..l40s() };
    let mut federation = federation(&[with_functions(8, 50, 2), with_functions(4, 100, 0), plain]);
    let lease = placed(&mut federation, over_nodes(24, 120));
    assert_eq!(taken(&federation, lease), [(150, Some(3)), (200, Some(2)), (120, None)]);
    let part = &federation.state.leases[&lease].placement.nodes[&node("n0")];
    assert_eq!(part.rdma_functions[&"ib".to_owned()].resource, VF);
    let lent = federation.state.occupancy().node(&cluster("north"), &node("n0")).unwrap();
    assert_eq!((lent.rdma_gbits[&"ib".to_owned()], lent.rdma_functions[&VF.to_owned()]), (150, 3));
    end(&mut federation, lease);
    assert!(federation.state.occupancy().node(&cluster("north"), &node("n0")).is_none(), "all came back");
}

#[test]
fn local_functions_are_not_lent_and_a_reason_says_when_waiting_helps() {
    let mut federation = federation(&[with_functions(4, 50, 2), with_functions(4, 50, 2)]);
    // 120 Gbit/s need three functions, and two are free. Once local work ends, a node has 200 Gbit/s, but never 201.
    let (code, reason, remedy) = obstacle(&federation, &over_nodes(10, 120));
    assert_eq!(code, "no-rdma");
    assert!(reason.contains("on nodes with 120 Gbit/s free on one network, in whole virtual functions"), "{reason}");
    assert!(remedy.starts_with("wait until more is free, or ask for less bandwidth"), "{remedy}");
    let (_, reason, remedy) = obstacle(&federation, &over_nodes(10, 201));
    assert!(reason.ends_with("and for 8 when idle") && remedy.starts_with("ask for less"), "{reason}: {remedy}");
    waits(&mut federation, over_nodes(10, 120));
    federation.offer("north", offering(3, &[with_functions(4, 50, 1), with_functions(4, 50, 1)]));
    assert_eq!(federation.place().len(), 1);
}

#[test]
fn apply_refuses_forged_functions() {
    let mut federation = federation(&[with_functions(4, 50, 0), with_functions(4, 50, 0)]);
    let request = federation.submit(over_nodes(10, 120));
    let good = scheduler::plan(&federation.state, 1).placements.remove(0);
    assert_eq!(good.request, request);
    let forge = |gbits: u32, count: Option<u32>| {
        let mut placement = good.placement.clone();
        let part = placement.nodes.iter_mut().next_back().unwrap().1;
        part.rdma_gbits.insert("ib".to_owned(), gbits);
        match count {
            Some(count) => part.rdma_functions.get_mut("ib").unwrap().count = count,
            None => part.rdma_functions.clear(),
        }
        ProposedPlacement { request, placement, more: Vec::new(), kind: PlacementKind::Serve, overdue: false }
    };
    for forged in [forge(120, Some(3)), forge(150, Some(2)), forge(150, None), forge(200, Some(4))] {
        let refused = refusal(&mut federation, forged);
        assert!(refused.contains("120 Gbit/s of each node on one network"), "{refused}");
    }
}

/// A donor's node for the property: with functions, or with plain bandwidth.
fn any_node() -> impl Strategy<Value = Node> {
    (1..9_u32, prop::sample::select(vec![25_u32, 50, 100]), 0..9_u32, any::<bool>()).prop_map(
        |(count, each, local, by_functions)| {
            let mut node = with_functions(count, each, local.min(count));
            if !by_functions {
                node.wiring.rdma_functions.clear();
            }
            node
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Ask { gpus: u32, gbits: u32 },
    End { which: usize },
    Offer { nodes: Vec<Node> },
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (2..14_u32, 1..260_u32).prop_map(|(gpus, gbits)| Step::Ask { gpus, gbits }),
        2 => any::<usize>().prop_map(|which| Step::End { which }),
        1 => prop::collection::vec(any_node(), 2..5).prop_map(|nodes| Step::Offer { nodes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// The plan does what the quote said. Each node gives the fewest whole functions that carry the bandwidth, and no
    /// more than it lends. The state's invariants, checked after each step, say that none is lent twice.
    #[test]
    fn functions_are_whole_and_quotes_are_kept(
        nodes in prop::collection::vec(any_node(), 2..5),
        steps in prop::collection::vec(any_step(), 1..14),
    ) {
        let mut federation = federation(&nodes);
        let (mut leases, mut generation) = (Vec::new(), 2);
        for step in steps {
            match step {
                Step::Ask { gpus, gbits } => {
                    let spec = RequestSpec { allow_donors: vec![cluster("north")], ..over_nodes(gpus, gbits) };
                    let quote = explain::quote(&federation.state, &spec);
                    let request = federation.submit(spec);
                    let placed = federation.place();
                    let lease = placed.iter().find(|id| federation.state.leases[id].request == request).copied();
                    prop_assert_eq!(lease.is_some(), !quote.placements.is_empty());
                    for lease in placed {
                        leases.push(lease);
                        check_whole(&federation, lease)?;
                    }
                    if let Some(lease) = lease {
                        prop_assert_eq!(&federation.state.leases[&lease].placement, &quote.placements[0]);
                    }
                }
                Step::End { which } if !leases.is_empty() => {
                    let lease = leases.swap_remove(which % leases.len());
                    end(&mut federation, lease);
                }
                Step::End { .. } => {}
                Step::Offer { nodes } => {
                    generation += 1;
                    federation.offer("north", offering(generation, &nodes));
                }
            }
        }
    }
}

/// Checks the functions and bandwidth that a new lease takes.
fn check_whole(federation: &Federation, lease: LeaseId) -> Result<(), TestCaseError> {
    let lease = &federation.state.leases[&lease];
    let asked = federation.state.requests[&lease.request].spec.topology.rdma_gbits;
    let offer = federation.state.clusters[&cluster("north")].offer.as_ref().unwrap();
    for (id, part) in &lease.placement.nodes {
        if lease.placement.nodes.len() < 2 {
            prop_assert!(part.rdma_gbits.is_empty() && part.rdma_functions.is_empty());
            continue;
        }
        let (gbits, wiring) = (part.rdma_gbits[&"ib".to_owned()], &offer.nodes[id].wiring);
        match (part.rdma_functions.get("ib"), wiring.rdma_functions.get("ib")) {
            (Some(taken), Some(has)) => {
                let each = wiring.rdma_gbits[&"ib".to_owned()] / has.count;
                prop_assert_eq!(gbits, taken.count * each);
                prop_assert!(gbits >= asked && gbits - asked < each);
                prop_assert!(taken.count <= has.count - has.local);
            }
            (None, None) => prop_assert_eq!(gbits, asked),
            other => prop_assert!(false, "{:?}", other),
        }
    }
    Ok(())
}
