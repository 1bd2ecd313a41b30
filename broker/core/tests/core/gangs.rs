//! Members of gangs, a campus of 64 GPUs, and gangs of all kinds at once.

use comity_core::demand::{GpuDemand, Members, Numa, NvLink, RequestSpec, Share, Topology};
use comity_core::explain;
use comity_core::inventory::{Device, Node, Sharing};
use comity_types::RequestId;
use proptest::prelude::*;

use super::boxes::{
    GIB, aligned, asking, dgx_a100, end, federation, hgx_h100, l40s, nvlink, obstacle, pcie_in_pairs, placed, waits,
};
use super::federation::{Federation, cluster, device};

#[test]
fn a_gang_starts_with_as_many_members_as_fit() {
    let mut federation = federation(&[hgx_h100(), pcie_in_pairs()]);
    let gang = |count, min, desired, topology| RequestSpec {
        members: Some(Members { min, desired }),
        ..asking(count, topology)
    };
    // Members of three GPUs: two on each node of eight; the remaining GPUs stay free.
    let lease = placed(&mut federation, gang(3, 2, 9, Topology::default()));
    let units: Vec<u32> = federation.state.leases[&lease]
        .placement
        .nodes
        .values()
        .map(|part| part.devices.values().map(|share| share.units).sum())
        .collect();
    assert_eq!((units, federation.state.leases[&lease].gpus.count), (vec![6, 6], 12));
    end(&mut federation, lease);
    // Members of three GPUs that NVLink joins: two on the HGX node, none on the node with pairs.
    let lease = placed(&mut federation, gang(3, 1, 9, nvlink()));
    assert_eq!(federation.state.leases[&lease].placement.units(), 6);
    waits(&mut federation, gang(3, 1, 9, nvlink()));
    let pairs = placed(&mut federation, gang(2, 4, 4, Topology { same_node: true, ..nvlink() }));
    assert_eq!(federation.state.leases[&pairs].placement.units(), 8);
    let (code, reason, unblock) = obstacle(&federation, &gang(2, 2, 4, Topology::default()));
    assert_eq!(code, "no-capacity");
    assert!(reason.contains("room for 1 of 2 members now, with 2 shares of class big each"), "{reason}");
    assert_eq!(unblock, "wait until 2 shares are free together on a node for each member that is missing");
}

/// Sixty-four GPUs in eight nodes.
fn campus() -> Federation {
    federation(&[hgx_h100(), hgx_h100(), hgx_h100(), hgx_h100(), hgx_h100(), hgx_h100(), hgx_h100(), hgx_h100()])
}

#[test]
fn all_64_gpus_of_a_campus_are_lent() {
    // In one request, by nodes, by sockets, and in a mix with NVLink groups: each time to the last GPU.
    let both = Topology { nvlink: NvLink::Required, ..aligned() };
    let all = Topology { rdma_gbits: 3_200, whole_node: true, ..both };
    let mixes: [&[(u32, Topology)]; 4] = [
        &[(64, all)],
        &[(8, nvlink()); 8],
        &[(4, aligned()); 16],
        &[
            (16, all),
            (2, both),
            (4, both),
            (2, aligned()),
            (8, nvlink()),
            (1, both),
            (3, aligned()),
            (4, both),
            (24, all),
        ],
    ];
    for mix in mixes {
        let mut federation = campus();
        for (count, topology) in mix {
            let mut spec = asking(*count, *topology);
            spec.gpus.cpu_milli_per_gpu = 14_000;
            spec.gpus.memory_mib_per_gpu = 256 * GIB;
            federation.submit(spec);
        }
        let asked: u32 = mix.iter().map(|(count, _)| count).sum();
        assert_eq!(federation.place().len(), mix.len(), "{mix:?}");
        assert_eq!(federation.state.occupancy().lent_milli(&cluster("north")), u64::from(asked) * 1_000);
    }
}

#[test]
fn requests_from_a_twentieth_to_four_servers_strand_no_gpu() {
    let shared = |has: Node| {
        let like = device(81_559, Sharing::Fractional { step_milli: 50 });
        let devices = has.devices.iter().map(|at| Device { wiring: at.wiring.clone(), ..like.clone() });
        Node { devices: devices.collect(), ..has }
    };
    let mut nodes = vec![hgx_h100(); 7];
    nodes.push(shared(l40s()));
    let mut federation = federation(&nodes);
    let part = |milli, count| {
        let mut spec = RequestSpec {
            gpus: GpuDemand { share: Share::Milli(milli), ..asking(count, aligned()).gpus },
            ..asking(count, aligned())
        };
        (spec.gpus.cpu_milli_per_gpu, spec.gpus.memory_mib_per_gpu) = (u64::from(milli) * 8, u64::from(milli) * 96);
        spec
    };
    // Seven servers for gangs, one for shares: twentieths, quarters, halves.
    federation.submit(asking(32, Topology { rdma_gbits: 400, ..nvlink() }));
    for count in [8, 4, 4, 2, 2, 1, 3] {
        federation.submit(asking(count, nvlink()));
    }
    for (milli, count, times) in [(50, 1, 20), (250, 4, 3), (500, 1, 8)] {
        for _ in 0..times {
            federation.submit(part(milli, count));
        }
    }
    assert_eq!(federation.place().len(), 8 + 31);
    assert_eq!(federation.state.queued_len(), 0);
    assert_eq!(federation.state.occupancy().lent_milli(&cluster("north")), 56_000 + 8_000);
}

fn any_topology() -> impl Strategy<Value = Topology> {
    let nvlink = prop_oneof![Just(NvLink::None), Just(NvLink::Preferred), Just(NvLink::Required)];
    let numa = prop_oneof![Just(Numa::None), Just(Numa::Aligned)];
    (
        any::<bool>(),
        proptest::bool::weighted(0.2),
        nvlink,
        numa,
        prop_oneof![Just(0), Just(100), Just(200), Just(1_600)],
        any::<bool>(),
    )
        .prop_map(|(same_node, whole_node, nvlink, numa, rdma_gbits, spread)| Topology {
            same_node,
            whole_node,
            nvlink,
            numa,
            rdma_gbits,
            spread_nodes: spread && !same_node && !whole_node,
        })
}

fn any_spec() -> impl Strategy<Value = RequestSpec> {
    let members =
        proptest::option::of((1..4_u32, 0..4_u32).prop_map(|(min, more)| Members { min, desired: min + more }));
    (
        1..9_u32,
        any_topology(),
        members,
        1..30_000_u64,
        prop_oneof![4 => Just(Share::Whole), 1 => Just(Share::Milli(1_000))],
    )
        .prop_map(|(count, topology, members, cpu, share)| {
            let mut spec = RequestSpec { members, ..asking(count, topology) };
            spec.gpus.cpu_milli_per_gpu = cpu;
            spec.gpus.share = share;
            spec
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// `apply` accepts every plan; nothing is lent twice (the invariants are checked after each apply); gangs hold all
    /// that they need or nothing; and when all leases have ended, every request that can fit has been served.
    #[test]
    fn gangs_of_all_kinds_are_served_or_wait_whole(specs in proptest::collection::vec(any_spec(), 1..25)) {
        let mut federation = federation(&[hgx_h100(), dgx_a100(), pcie_in_pairs(), l40s(), pcie_in_pairs()]);
        let mut waiting: Vec<RequestId> = specs.iter().map(|spec| federation.submit(spec.clone())).collect();
        let mut rounds = 0;
        loop {
            // `place` asserts that `apply` refuses nothing in the plan.
            let leases = federation.place();
            for (spec, lease) in leases.iter().map(|lease| &federation.state.leases[lease]).map(|lease| {
                (&federation.state.requests[&lease.request].spec, lease)
            }) {
                let units = lease.placement.units();
                let members = spec.members.unwrap_or(Members { min: 1, desired: 1 });
                prop_assert_eq!(units % u64::from(spec.gpus.count), 0);
                let many = units / u64::from(spec.gpus.count);
                prop_assert!((u64::from(members.min)..=u64::from(members.desired)).contains(&many));
            }
            waiting.retain(|id| federation.state.requests[id].lease.is_none());
            if leases.is_empty() {
                break;
            }
            for lease in leases {
                end(&mut federation, lease);
            }
            rounds += 1;
            prop_assert!(rounds <= specs.len());
        }
        // Nothing is lent any more: the waiting requests fit nowhere, and their explanations say why.
        for id in waiting {
            let spec = &federation.state.requests[&id].spec;
            let explanation = explain::explain(&federation.state, spec);
            prop_assert!(explanation.donors.iter().all(|verdict| verdict.obstacle.is_some()), "{:?}", spec);
            let at = cluster("north");
            prop_assert!(federation.state.occupancy().lent_milli(&at) == 0);
        }
    }
}
