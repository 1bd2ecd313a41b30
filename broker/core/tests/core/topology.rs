//! NVLink, NUMA and RDMA on commercial nodes.

use comity_core::Command;
use comity_core::command::PlaceRequests;
use comity_core::demand::{Members, NvLink, RequestSpec, Topology};
use comity_core::explain;
use comity_core::inventory::{Enforcement, Node, NodeWiring, NumaAmounts};
use comity_core::placement::NodePlacement;
use comity_core::proposal::{PlacementKind, ProposedPlacement};
use comity_core::scheduler;

use super::boxes::{
    GIB, aligned, asking, devices, dgx_a100, end, federation, hgx_h100, l40s, nvlink, obstacle, offering,
    pcie_in_pairs, placed, refusal, waits,
};
use super::federation::node;

#[test]
fn nvlink_takes_pairs_that_bridges_join() {
    let mut federation = federation(&[pcie_in_pairs()]);
    let pairs = [[0, 1], [2, 3], [4, 5]].map(|pair| {
        let lease = placed(&mut federation, asking(2, nvlink()));
        assert_eq!(devices(&federation, lease), pair);
        lease
    });
    let single = placed(&mut federation, asking(1, Topology::default()));
    assert_eq!(devices(&federation, single), [6]);
    end(&mut federation, pairs[0]);
    // A request without NVLink takes the rest of a split pair, and splits no other.
    let rest = placed(&mut federation, asking(1, Topology::default()));
    assert_eq!(devices(&federation, rest), [7]);
    let pair = placed(&mut federation, asking(2, nvlink()));
    assert_eq!(devices(&federation, pair), [0, 1]);
    waits(&mut federation, asking(1, nvlink()));
}

#[test]
fn the_reason_names_missing_nvlink() {
    let mut federation = federation(&[pcie_in_pairs()]);
    let (code, reason, remedy) = obstacle(&federation, &asking(3, Topology { same_node: true, ..nvlink() }));
    assert_eq!(code, "no-nvlink");
    assert!(
        reason.contains("room for 2 of 3 shares that NVLink joins") && reason.contains("for 2 when idle"),
        "{reason}"
    );
    assert!(remedy.contains("only prefer NVLink"), "{remedy}");
    // Preferred NVLink is granted if possible, and does not block a placement.
    let preferred = Topology { nvlink: NvLink::Preferred, same_node: true, ..Topology::default() };
    let single = placed(&mut federation, asking(1, Topology::default()));
    assert_eq!(devices(&federation, single), [0]);
    let pair = placed(&mut federation, asking(2, preferred));
    assert_eq!(devices(&federation, pair), [2, 3]);
    let three = placed(&mut federation, asking(3, preferred));
    assert_eq!(devices(&federation, three), [1, 4, 5]);

    federation.offer("north", offering(3, &[l40s()]));
    let (code, reason, _) = obstacle(&federation, &asking(2, nvlink()));
    assert_eq!(code, "no-nvlink");
    assert!(reason.contains("does not say that NVLink joins any"), "{reason}");
    // Nothing is free now, but the reason is NVLink: waiting would not help.
    placed(&mut federation, asking(2, Topology::default()));
    assert_eq!(obstacle(&federation, &asking(2, nvlink())).0, "no-nvlink");
    assert_eq!(obstacle(&federation, &asking(2, aligned())).0, "no-capacity");
}

#[test]
fn a_donor_may_lend_nvlink_nodes_only_as_a_whole() {
    let mut federation = federation(&[hgx_h100(), hgx_h100()]);
    federation.with_terms("lends:", "nodeSharing: {nvlink: whole-nodes}, lends:");
    let (code, reason, remedy) = obstacle(&federation, &asking(4, nvlink()));
    assert_eq!(code, "no-nvlink");
    assert!(reason.contains("by whole nodes only") && remedy.contains("fill whole nodes"), "{reason} {remedy}");
    let whole = placed(&mut federation, asking(8, nvlink()));
    assert_eq!(devices(&federation, whole).len(), 8);
    // A request without NVLink may take part of the other node; then no whole node is left.
    placed(&mut federation, asking(4, Topology::default()));
    waits(&mut federation, asking(8, nvlink()));
    // `apply` refuses a placement on part of a node.
    let request = federation.submit(asking(4, nvlink()));
    let mut forged = ProposedPlacement {
        request,
        placement: federation.state.leases.values().last().unwrap().placement.clone(),
        more: Vec::new(),
        kind: PlacementKind::Serve,
        overdue: false,
    };
    let part = forged.placement.nodes.iter_mut().next().unwrap().1;
    part.devices = part.devices.values().zip(4..).map(|(share, index)| (index, *share)).collect();
    let refused = refusal(&mut federation, forged);
    assert!(refused.contains("is not taken whole"), "{refused}");
}

#[test]
fn cpu_and_memory_come_from_the_socket_of_the_gpu() {
    let mut federation = federation(&[hgx_h100()]);
    // 57 cores are more than a socket has, although the node has 112.
    let mut greedy = asking(1, aligned());
    greedy.gpus.cpu_milli_per_gpu = 57_000;
    let (code, reason, _) = obstacle(&federation, &greedy);
    assert_eq!(code, "no-numa-alignment");
    assert!(reason.contains("room for 0 of 1 shares") && reason.contains("for 0 when idle"), "{reason}");
    // Four GPUs with 14 cores each fill a socket; a fifth uses the other one.
    let mut wide = asking(4, aligned());
    wide.gpus.cpu_milli_per_gpu = 14_000;
    let first = placed(&mut federation, wide.clone());
    assert_eq!(devices(&federation, first), [0, 1, 2, 3]);
    let part = &federation.state.leases[&first].placement.nodes[&node("n0")];
    assert_eq!(Vec::from_iter(&part.numa), [(&0, &NumaAmounts { cpu_milli: 56_000, memory_mib: 256 * GIB })]);
    wide.gpus.count = 1;
    let fifth = placed(&mut federation, wide);
    assert_eq!(devices(&federation, fifth), [4]);
}

#[test]
fn work_without_alignment_may_use_any_socket() {
    let mut federation = federation(&[hgx_h100()]);
    let mut loose = asking(2, Topology::default());
    loose.gpus.cpu_milli_per_gpu = 10_000;
    placed(&mut federation, loose);
    // Requests with alignment can rely on 36 of 56 cores of each socket.
    let mut sure = asking(1, aligned());
    sure.gpus.cpu_milli_per_gpu = 36_000;
    for _ in 0..2 {
        placed(&mut federation, sure.clone());
    }
    waits(&mut federation, sure);
    let (code, reason, _) = obstacle(&federation, &{
        let mut sure = asking(1, aligned());
        sure.gpus.cpu_milli_per_gpu = 20_000;
        sure
    });
    assert_eq!(code, "no-numa-alignment");
    assert!(reason.contains("room for 0 of 1 shares with CPU and memory"), "{reason}");
    // Without alignment 20 cores are free.
    let mut rest = asking(1, Topology::default());
    rest.gpus.cpu_milli_per_gpu = 20_000;
    placed(&mut federation, rest);
}

#[test]
fn local_work_may_use_any_socket_and_unknown_sockets_serve_no_aligned_request() {
    let busy = Node { local_cpu_milli: 30_000, ..hgx_h100() };
    let mut federation = federation(&[busy]);
    let mut spec = asking(1, aligned());
    spec.gpus.cpu_milli_per_gpu = 27_000;
    let (code, _, _) = obstacle(&federation, &spec);
    assert_eq!(code, "no-numa-alignment");
    spec.gpus.cpu_milli_per_gpu = 26_000;
    placed(&mut federation, spec.clone());

    let unknown = Node { wiring: NodeWiring::default(), ..l40s() };
    let devices = unknown.devices.iter().map(|device| device.clone().wired(None, None)).collect();
    federation.offer("north", offering(3, &[Node { devices, ..unknown }]));
    let (code, reason, remedy) = obstacle(&federation, &spec);
    assert_eq!(code, "no-numa-alignment");
    assert!(reason.contains("does not say at which NUMA nodes"), "{reason}");
    assert!(remedy.contains("without alignment"), "{remedy}");
}

#[test]
fn part_of_a_dgx_uses_as_few_numa_nodes_as_possible() {
    let mut federation = federation(&[dgx_a100()]);
    let pair = placed(&mut federation, asking(2, aligned()));
    assert_eq!(devices(&federation, pair), [2, 3], "both at NUMA node 1");
    let four = placed(&mut federation, asking(4, aligned()));
    let part = &federation.state.leases[&four].placement.nodes[&node("n0")];
    assert_eq!(part.numa.keys().copied().collect::<Vec<_>>(), [3, 5]);
    let mut wide = asking(2, aligned());
    wide.gpus.cpu_milli_per_gpu = 9_000;
    let (code, reason, _) = obstacle(&federation, &wide);
    assert_eq!(code, "no-numa-alignment", "16 cores are at NUMA node 7: {reason}");
    placed(&mut federation, asking(2, aligned()));
}

#[test]
fn gangs_over_nodes_get_bandwidth_and_return_it() {
    let mut federation = federation(&[hgx_h100(), hgx_h100(), l40s()]);
    let fast = Topology { rdma_gbits: 2_000, ..Topology::default() };
    let one_node = placed(&mut federation, asking(2, fast));
    let part = federation.state.leases[&one_node].placement.nodes.values().next().unwrap();
    assert!(part.rdma_gbits.is_empty(), "one node needs no network");
    let two_nodes = placed(&mut federation, asking(10, fast));
    let placement = &federation.state.leases[&two_nodes].placement;
    assert_eq!(placement.nodes.keys().map(|id| id.to_string()).collect::<Vec<_>>(), ["n0", "n1"]);
    assert!(placement.nodes.values().all(|part| part.rdma_gbits[&"ib".to_owned()] == 2_000));
    // 1,200 of 3,200 Gbit/s are free; the third node has eight GPUs and no network.
    let wanted = asking(12, Topology { rdma_gbits: 1_300, ..Topology::default() });
    let (code, reason, _) = obstacle(&federation, &wanted);
    assert_eq!(code, "no-rdma");
    assert!(reason.contains("room for 8 of 12 shares on one node, or on nodes with 1300 Gbit/s"), "{reason}");
    let waiting = waits(&mut federation, wanted);
    end(&mut federation, two_nodes);
    let leases = federation.place();
    assert_eq!(federation.state.requests[&waiting].lease, Some(leases[0]));
}

#[test]
fn apply_refuses_forged_wiring() {
    let mut federation = federation(&[pcie_in_pairs(), pcie_in_pairs()]);
    let both = Topology { nvlink: NvLink::Required, ..aligned() };
    let request = federation.submit(RequestSpec {
        members: Some(Members { min: 5, desired: 6 }),
        ..asking(2, Topology { rdma_gbits: 100, ..both })
    });
    let good = scheduler::plan(&federation.state, 1).placements.remove(0);
    assert_eq!((good.request, good.placement.nodes.len(), good.placement.units()), (request, 2, 12));
    let forge = |change: &dyn Fn(&mut NodePlacement)| {
        let mut forged = good.clone();
        change(forged.placement.nodes.iter_mut().next_back().unwrap().1);
        forged
    };
    let away = |forged: &mut ProposedPlacement| {
        let first = forged.placement.nodes.keys().next().unwrap().clone();
        forged.placement.nodes.remove(&first);
    };
    let mut fewer = good.clone();
    away(&mut fewer);
    let moved = |part: &mut NodePlacement| {
        let share = part.devices.remove(&0).unwrap();
        let free = (0..8).find(|index| !part.devices.contains_key(index) && *index != 0).unwrap();
        part.devices.insert(free, share);
    };
    for (forged, word) in [
        (fewer, "which are not 5 to 6 members of 2"),
        (forge(&|part| part.rdma_gbits.clear()), "100 Gbit/s of each node on one network"),
        (forge(&|part| part.rdma_gbits.extend([("eth".to_owned(), 100)])), "on one network"),
        (forge(&|part| part.numa.clear()), "of the NUMA nodes of its devices"),
        (forge(&|part| part.numa.get_mut(&0).unwrap().cpu_milli -= 1), "of the NUMA nodes of its devices"),
        (forge(&moved), "devices that NVLink joins"),
    ] {
        let refused = refusal(&mut federation, forged);
        assert!(refused.contains(word), "{word}: {refused}");
    }
    federation.ok(Command::PlaceRequests(PlaceRequests { placements: vec![good] }));
    assert_eq!(federation.state.leases.len(), 1);
}

fn enforcing(enforces: Enforcement, node: Node) -> Node {
    Node { enforces, ..node }
}

#[test]
fn nvlink_needs_devices_that_are_enforced_or_all_joined() {
    let unenforced = |node| enforcing(Enforcement::default(), node);
    let mut federation = federation(&[pcie_in_pairs()]);
    let request = federation.submit(asking(2, nvlink()));
    let planned = scheduler::plan(&federation.state, 1).placements.remove(0);
    assert_eq!(planned.request, request);
    federation.offer("north", offering(3, &[unenforced(pcie_in_pairs())]));
    let refused = refusal(&mut federation, planned);
    assert!(refused.contains("does not enforce devices"), "{refused}");
    assert_eq!(federation.place(), []);
    let (code, reason, remedy) = obstacle(&federation, &asking(2, nvlink()));
    assert_eq!(code, "not-enforced");
    assert!(reason.contains("does not enforce which devices of class big pods get"), "{reason}");
    assert!(remedy.contains("prefer NVLink") && remedy.contains("ask its owner to enforce devices"), "{remedy}");
    // A preference is met as far as the kubelet chooses likewise.
    let preferred = Topology { nvlink: NvLink::Preferred, ..Topology::default() };
    placed(&mut federation, asking(1, Topology::default()));
    let pair = placed(&mut federation, asking(2, preferred));
    assert_eq!(devices(&federation, pair), [2, 3]);
    // Of a box with NVSwitch, the kubelet cannot choose devices that are not joined.
    federation.offer("north", offering(4, &[unenforced(hgx_h100())]));
    assert_eq!(federation.place().len(), 1);
    assert!(federation.state.requests[&request].lease.is_some());
}

#[test]
fn alignment_needs_a_kubelet_that_enforces_it() {
    let devices_only = Enforcement { devices: true, numa: false };
    let mut federation = federation(&[hgx_h100()]);
    federation.submit(asking(2, aligned()));
    let planned = scheduler::plan(&federation.state, 1).placements.remove(0);
    federation.offer("north", offering(3, &[enforcing(devices_only, hgx_h100())]));
    let refused = refusal(&mut federation, planned);
    assert!(refused.contains("does not enforce that CPU and memory"), "{refused}");
    let (code, reason, remedy) = obstacle(&federation, &asking(2, aligned()));
    assert_eq!(code, "not-enforced");
    assert!(reason.contains("does not enforce that containers get CPU and memory"), "{reason}");
    assert!(remedy.contains("single-numa-node"), "{remedy}");
    // Nodes that enforce it serve the request, whatever the others do.
    federation.offer("north", offering(4, &[enforcing(devices_only, hgx_h100()), l40s()]));
    let leases = federation.place();
    let nodes: Vec<String> =
        federation.state.leases[&leases[0]].placement.nodes.keys().map(ToString::to_string).collect();
    assert_eq!(nodes, ["n1"]);
}

#[test]
fn a_quote_tells_what_the_donor_enforces() {
    let federation = federation(&[enforcing(Enforcement { devices: false, numa: true }, hgx_h100())]);
    let quoted = |count| explain::quote(&federation.state, &asking(count, Topology::default())).enforces;
    assert_eq!(quoted(2), Enforcement { devices: false, numa: true });
    assert_eq!(quoted(8), Enforcement::ALL, "all devices of a node leave no choice");
    assert_eq!(quoted(9), Enforcement::default(), "no placement");
}
