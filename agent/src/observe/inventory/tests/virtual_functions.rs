//! Virtual functions of RDMA networks.

use comity_proto::v1::RdmaBandwidth;

use super::*;
use crate::observe::RdmaResource;

const VF: &str = "nvidia.com/ib_vf";

fn mapped(resource: &str, network: &str, gbits: u32) -> RdmaResource {
    RdmaResource { resource: resource.to_owned(), network: network.to_owned(), gbits }
}

/// A node with these functions besides its GPUs, as an SR-IOV device plugin counts them.
fn node_with(counts: &[(&str, &str)]) -> Value {
    let mut node = raw_node("gpu-1");
    let mut all = vec![("nvidia.com/gpu", "8")];
    all.extend(counts);
    set_counts(&mut node, &all);
    node
}

fn build(node: &Value, pods: &[Value], rdma: Vec<RdmaResource>) -> (Vec<RdmaBandwidth>, Vec<NotOffered>) {
    let nodes = [NodeFacts::of(&read::<core::Node>(node)).unwrap()];
    let mut names = Names::default();
    let pods: Vec<PodFacts> = pods.iter().filter_map(|pod| names.facts_of(&read::<core::Pod>(pod))).collect();
    let settings = InventorySettings { salt: TEST_SALT, reserve: LocalReserve::default(), rdma };
    let mut built = build_nodes(&nodes, &pods, &one_lease(), &BTreeMap::new(), &settings);
    (built.nodes.remove(0).rdma, built.not_offered)
}

#[test]
fn usable_functions_are_offered_and_local_use_is_reported() {
    let mut node = node_with(&[(VF, "8")]);
    // One function is broken: the plugin counts it in capacity alone.
    node["status"]["allocatable"][VF] = json!("7");
    let pods = [
        raw_pod("research", "a", "gpu-1", VF, 2),
        raw_pod("comity-lease-1", "b", "gpu-1", VF, 3),
        raw_pod("research", "c", "gpu-2", VF, 4),
        raw_pod("research", "d", "gpu-1", "rdma/hca", 1),
    ];
    let (rdma, not_offered) = build(&node, &pods, vec![mapped(VF, "ib-fabric", 50)]);
    let offered = RdmaBandwidth {
        network: "ib-fabric".to_owned(),
        gbits: 350,
        resource: VF.to_owned(),
        functions: 7,
        local_functions: 2,
    };
    assert_eq!((rdma, not_offered), (vec![offered], Vec::new()));
    // More than exist, because some failed while local work used them.
    let (rdma, _) = build(&node, &[raw_pod("research", "a", "gpu-1", VF, 8)], vec![mapped(VF, "ib-fabric", 50)]);
    assert_eq!((rdma[0].functions, rdma[0].local_functions), (7, 7));
    assert_eq!(build(&node, &pods, Vec::new()).0, []);
}

#[test]
fn the_owners_annotation_wins_over_functions() {
    let mut node = node_with(&[(VF, "8"), ("rdma/hca", "1")]);
    node["metadata"]["annotations"] = json!({ (wiring::WIRING_ANNOTATION): "{rdma: {ib-fabric: 400}}" });
    let (rdma, not_offered) = build(&node, &[], vec![mapped(VF, "ib-fabric", 50), mapped("rdma/hca", "roce", 100)]);
    let wiring: Vec<_> = rdma.iter().map(|it| (it.network.as_str(), it.gbits, it.resource.as_str())).collect();
    assert_eq!(wiring, [("ib-fabric", 400, ""), ("roce", 100, "rdma/hca")]);
    assert!(not_offered[0].resource == VF && not_offered[0].reason.contains("annotation"), "{not_offered:?}");
}

#[test]
fn resources_that_are_not_offered_have_a_reason() {
    // Two kinds of functions of one network: the larger part is lent.
    let node = node_with(&[(VF, "4"), ("intel.com/vf", "8"), ("rdma/many", "2000000")]);
    let (rdma, not_offered) = build(
        &node,
        &[],
        vec![
            mapped(VF, "ib", 50),
            mapped("intel.com/vf", "ib", 100),
            mapped("rdma/many", "wide", 1),
            mapped("nvidia.com/vf_ib", "ib", 50),
        ],
    );
    assert_eq!((rdma.len(), rdma[0].resource.as_str(), rdma[0].gbits), (1, "intel.com/vf", 800));
    let reasons: BTreeMap<&str, &str> =
        not_offered.iter().map(|left| (left.resource.as_str(), left.reason.as_str())).collect();
    assert!(reasons[VF].contains("another resource of the node"), "{reasons:?}");
    assert!(reasons["rdma/many"].contains("more than the 1000000 Gbit/s"), "{reasons:?}");
    assert!(reasons["nvidia.com/vf_ib"].contains("no node counts it"), "{reasons:?}");
}
