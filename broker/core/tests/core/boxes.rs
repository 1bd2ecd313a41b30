//! Commercial nodes of eight GPUs, and a federation in which one cluster has them.

use comity_core::command::{LeaseOutcome, PlaceRequests, ReleaseLease, ReportLease};
use comity_core::demand::{Numa, NvLink, RequestSpec, Share, Topology};
use comity_core::explain;
use comity_core::inventory::{Enforcement, Node, NodeWiring, NumaAmounts, Offer, Sharing};
use comity_core::proposal::ProposedPlacement;
use comity_core::refusal::Code;
use comity_core::{Command, ReplyBody};
use comity_types::{LeaseId, RequestId};

use super::federation::{Federation, cluster, device, node, offer, spec};

pub(crate) const GIB: u64 = 1_024;

/// A node of eight GPUs; `gpus` has the NUMA node and the NVLink clique of each.
pub(crate) fn box_of_eight(sockets: &[(u64, u64)], gpus: [(u32, Option<&str>); 8], gbits: u32) -> Node {
    let like = device(81_559, Sharing::Exclusive);
    let numa = (0..)
        .zip(sockets)
        .map(|(number, &(cores, gib))| (number, NumaAmounts { cpu_milli: cores * 1_000, memory_mib: gib * GIB }));
    let wiring = NodeWiring {
        numa: numa.collect(),
        rdma_gbits: (gbits > 0).then(|| ("ib".to_owned(), gbits)).into_iter().collect(),
        ..NodeWiring::default()
    };
    let all = wiring.numa.values().fold(NumaAmounts::default(), |sum, has| sum.plus(*has));
    Node {
        cpu_milli: all.cpu_milli,
        memory_mib: all.memory_mib,
        local_cpu_milli: 0,
        local_memory_mib: 0,
        devices: gpus.iter().map(|(numa, nvlink)| like.clone().wired(Some(*numa), *nvlink)).collect(),
        schedulable: true,
        ready: true,
        wiring,
        enforces: Enforcement::ALL,
    }
}

/// HGX H100: NVSwitch joins all eight GPUs; four on each socket of 56 cores and 1 TiB; 8 × 400 Gbit/s.
pub(crate) fn hgx_h100() -> Node {
    let at = |numa| (numa, Some("nvswitch"));
    box_of_eight(&[(56, 1_024); 2], [at(0), at(0), at(0), at(0), at(1), at(1), at(1), at(1)], 3_200)
}

/// DGX A100: NVSwitch joins all eight GPUs; two processors of four NUMA nodes each, with GPUs at four of the eight.
pub(crate) fn dgx_a100() -> Node {
    let at = |numa| (numa, Some("nvswitch"));
    box_of_eight(&[(16, 128); 8], [at(3), at(3), at(1), at(1), at(7), at(7), at(5), at(5)], 1_600)
}

/// A100 PCIe: bridges join pairs.
pub(crate) fn pcie_in_pairs() -> Node {
    let at = |numa, pair| (numa, Some(pair));
    let gpus = [at(0, "a"), at(0, "a"), at(0, "b"), at(0, "b"), at(1, "c"), at(1, "c"), at(1, "d"), at(1, "d")];
    box_of_eight(&[(32, 512); 2], gpus, 200)
}

/// L40S: no NVLink, two sockets, plain Ethernet.
pub(crate) fn l40s() -> Node {
    box_of_eight(&[(32, 384); 2], [0, 0, 0, 0, 1, 1, 1, 1].map(|numa| (numa, None)), 0)
}

pub(crate) fn offering(generation: u64, nodes: &[Node]) -> Offer {
    let nodes = nodes.iter().enumerate().map(|(number, has)| (node(&format!("n{number}")), has.clone()));
    Offer { nodes: nodes.collect(), ..offer(generation, &[]) }
}

/// Only `north` offers nodes.
pub(crate) fn federation(nodes: &[Node]) -> Federation {
    let mut federation = Federation::ready();
    federation.offer("south", offer(2, &[]));
    federation.offer("north", offering(2, nodes));
    federation
}

/// Whole GPUs with eight cores and 64 GiB each.
pub(crate) fn asking(count: u32, topology: Topology) -> RequestSpec {
    let mut spec = RequestSpec { topology, ..spec(count, Share::Whole, "big") };
    (spec.gpus.cpu_milli_per_gpu, spec.gpus.memory_mib_per_gpu) = (8_000, 64 * GIB);
    spec
}

pub(crate) fn nvlink() -> Topology {
    Topology { nvlink: NvLink::Required, ..Topology::default() }
}

pub(crate) fn aligned() -> Topology {
    Topology { numa: Numa::Aligned, ..Topology::default() }
}

pub(crate) fn devices(federation: &Federation, lease: LeaseId) -> Vec<u32> {
    federation.state.leases[&lease].placement.nodes.values().flat_map(|part| part.devices.keys().copied()).collect()
}

/// Code, reason and remedy of the obstacle of `north` to this request.
pub(crate) fn obstacle(federation: &Federation, spec: &RequestSpec) -> (String, String, String) {
    let explanation = explain::explain(&federation.state, spec);
    let verdict = explanation.donors.into_iter().find(|verdict| verdict.donor == cluster("north")).unwrap();
    let obstacle = verdict.obstacle.unwrap();
    (obstacle.code, obstacle.reason, obstacle.unblock)
}

pub(crate) fn placed(federation: &mut Federation, spec: RequestSpec) -> LeaseId {
    federation.submit(spec);
    let leases = federation.place();
    assert_eq!(leases.len(), 1, "not placed");
    leases[0]
}

pub(crate) fn waits(federation: &mut Federation, spec: RequestSpec) -> RequestId {
    let request = federation.submit(spec);
    assert_eq!(federation.place(), []);
    request
}

/// Releases a lease, and its donor reports that it is clean.
pub(crate) fn end(federation: &mut Federation, lease: LeaseId) {
    federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
    let fencing_token = federation.state.leases[&lease].fencing_token;
    federation.ok(Command::ReportLease(ReportLease {
        cluster: cluster("north"),
        lease,
        fencing_token,
        outcome: LeaseOutcome::Clean,
    }));
}

/// The refusal by `apply` of an invalid placement.
pub(crate) fn refusal(federation: &mut Federation, placement: ProposedPlacement) -> String {
    match federation.ok(Command::PlaceRequests(PlaceRequests { placements: vec![placement] })).reply {
        Ok(ReplyBody::Placed { leases, refused }) => {
            assert!(leases.is_empty(), "believed");
            assert_eq!(refused[0].1.code, Code::NoCapacity);
            refused[0].1.to_string()
        }
        other => panic!("{other:?}"),
    }
}
