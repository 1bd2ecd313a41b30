use comity_agent_model::lent::{NodeMark, PodsOf};

use super::*;
use crate::observe::TEST_SALT;

const LEASED_RESOURCE: &str = "nvidia.com/gpu";
const USER: &str = "lease-9-181fdd46fc4a";

/// A pod with GPUs, created at a time; `stage` of a pod that belongs to nobody's lease has no meaning.
fn pod(namespace: &str, name: &str, node: &str, gpus: u64, created_ms: i64) -> PodFacts {
    let guest = GuestPod {
        name: name.to_owned(),
        uid: name.to_owned(),
        created_ms,
        liqo_user: None,
        lease: None,
        stage: GuestStage::Bound,
    };
    PodFacts {
        namespace: namespace.into(),
        node: node.into(),
        requests: [("cpu".into(), 1_000), (LEASED_RESOURCE.into(), gpus)].into(),
        guest: Some(Box::new(guest)),
        hami_shares: None,
    }
}

fn offloaded(name: &str, node: &str, gpus: u64, user: &str) -> PodFacts {
    let mut pod = pod("jobs-origin", name, node, gpus, 1);
    pod.guest.as_mut().expect("a guest").liqo_user = Some(user.to_owned());
    pod
}

fn at(mut pod: PodFacts, stage: GuestStage) -> PodFacts {
    pod.guest.as_mut().expect("a guest").stage = stage;
    pod
}

fn lease(pods: PodsOf, nodes: &[(&str, u64)]) -> LentLease {
    let amounts = |gpus: u64| BTreeMap::from([(LEASED_RESOURCE.to_owned(), gpus), ("cpu".to_owned(), gpus * 1_000)]);
    LentLease {
        pods,
        mark: NodeMark::Nothing,
        resource: LEASED_RESOURCE.to_owned(),
        is_wanted: true,
        nodes: nodes.iter().map(|(node, gpus)| (TEST_SALT.node_id(node), amounts(*gpus))).collect(),
    }
}

/// lease-7 has two GPUs of node a and one of b; lease-8's namespace is here, and it is not in force; lease-9 is a
/// virtual node with two GPUs of a.
fn guests() -> Guests {
    Guests {
        lease_namespaces: [7, 8].map(|id| (format!("comity-lease-{id}"), LeaseId(id))).into(),
        liqo_namespaces: BTreeSet::from(["jobs-origin".to_owned()]),
        leases: Arc::new(BTreeMap::from([
            (LeaseId(7), lease(PodsOf::Namespace, &[("a", 2), ("b", 1)])),
            (LeaseId(9), lease(PodsOf::LiqoUser(USER.to_owned()), &[("a", 2)])),
        ])),
    }
}

/// Local GPUs by node, and the names of drifted pods.
fn divided(pods: &[PodFacts]) -> (BTreeMap<String, u64>, Vec<String>) {
    let NodeUse { local, drifted, .. } = divide(pods, &guests(), &TEST_SALT);
    let gpus = |amounts: &Amounts| amounts.get(LEASED_RESOURCE).copied().unwrap_or(0);
    let local = local.iter().map(|(node, amounts)| ((*node).to_owned(), gpus(amounts)));
    (local.filter(|(_, gpus)| *gpus > 0).collect(), drifted.into_iter().map(|pod| pod.name).collect())
}

#[test]
fn pods_count_as_lent_only_on_their_nodes_and_up_to_their_amounts() {
    let of_7 = |name: &str, node: &str, gpus: u64, created_ms| pod("comity-lease-7", name, node, gpus, created_ms);
    type Case = (&'static str, Vec<PodFacts>, &'static [(&'static str, u64)], &'static [&'static str]);
    let cases: [Case; 13] = [
        ("as placed", vec![of_7("x", "a", 2, 1), of_7("y", "b", 1, 1)], &[], &[]),
        ("drift to another node", vec![of_7("x", "c", 2, 1)], &[("c", 2)], &["x"]),
        ("drift without a LEASED_RESOURCE", vec![of_7("x", "c", 0, 1)], &[], &["x"]),
        (
            "too many on one of two nodes, the youngest goes",
            vec![of_7("old", "b", 1, 1), of_7("young", "b", 1, 2)],
            &[("b", 1)],
            &["young"],
        ),
        (
            "a pod that does not fit leaves room for a younger one that does",
            vec![of_7("one", "a", 1, 1), of_7("two", "a", 2, 2), of_7("three", "a", 1, 3)],
            &[("a", 2)],
            &["two"],
        ),
        (
            "the youngest first",
            vec![of_7("x", "c", 1, 1), of_7("z", "c", 1, 3), of_7("y", "c", 1, 2)],
            &[("c", 3)],
            &["z", "y", "x"],
        ),
        ("lease not in force", vec![pod("comity-lease-8", "x", "a", 1, 1)], &[("a", 1)], &[]),
        ("local", vec![pod("research", "x", "a", 3, 1)], &[("a", 3)], &[]),
        (
            "a pod that ends holds its LEASED_RESOURCE, and must end soon, while its successor stays",
            vec![at(of_7("going", "b", 1, 1), GuestStage::Ending), of_7("next", "b", 1, 2)],
            &[("b", 1)],
            &["going"],
        ),
        ("nominated elsewhere", vec![at(of_7("x", "c", 1, 1), GuestStage::Nominated)], &[("c", 1)], &[]),
        ("virtual node", vec![offloaded("x", "a", 2, USER)], &[], &[]),
        ("virtual node, drifted", vec![offloaded("x", "b", 2, USER)], &[("b", 2)], &["x"]),
        ("another user of Liqo", vec![offloaded("x", "a", 2, "lease-1-181fdd46fc4a")], &[("a", 2)], &[]),
    ];
    for (name, pods, local, drifted) in cases {
        let local: BTreeMap<String, u64> = local.iter().map(|(node, gpus)| ((*node).to_owned(), *gpus)).collect();
        assert_eq!(divided(&pods), (local, drifted.iter().map(|name| (*name).to_owned()).collect()), "{name}");
    }
}

#[test]
fn placeholders_of_leases_in_force_are_no_local_use() {
    let placeholder = |lease: u64| {
        let mut pod = pod(PLACEHOLDER_NAMESPACE.name, "x", "a", 1, 1);
        pod.guest.as_mut().expect("a guest").lease = Some(LeaseId(lease));
        pod
    };
    assert_eq!(divided(&[placeholder(7)]), (BTreeMap::new(), Vec::new()));
    assert_eq!(divided(&[placeholder(8)]).0, BTreeMap::from([("a".to_owned(), 1)]));
}

#[test]
fn leased_gpus_without_a_pod_of_the_lease_are_unused() {
    let guests = guests();
    let pods =
        [pod("comity-lease-7", "x", "a", 1, 1), pod("comity-lease-7", "y", "b", 2, 1), pod("research", "z", "a", 1, 1)];
    let found = divide(&pods, &guests, &TEST_SALT);
    let unused = found.unused(&["a", "b", "c"], &guests, &TEST_SALT);
    let of = |lease: u64, node: &str| (LeaseId(lease), node.to_owned());
    assert_eq!(unused, BTreeMap::from([(of(7, "a"), 1), (of(9, "a"), 2)]));
    let mut ending = guests.clone();
    Arc::make_mut(&mut ending.leases).get_mut(&LeaseId(7)).expect("lease-7").is_wanted = false;
    assert_eq!(found.unused(&["a"], &ending, &TEST_SALT), BTreeMap::from([(of(9, "a"), 2)]));

    // Nothing counts the use of claims, and no placeholder can hold them.
    let mut claimed = lease(PodsOf::Namespace, &[("a", 2)]);
    claimed.resource = GpuClass::NvidiaGpu.quota_name();
    let amounts = claimed.nodes.get_mut(&TEST_SALT.node_id("a")).expect("node a");
    let gpus = amounts.remove(LEASED_RESOURCE).expect("GPUs");
    amounts.insert(claimed.resource.clone(), gpus);
    Arc::make_mut(&mut ending.leases).insert(LeaseId(10), claimed);
    assert_eq!(found.unused(&["a"], &ending, &TEST_SALT), BTreeMap::from([(of(9, "a"), 2)]));
}

#[test]
fn a_label_of_liqo_hides_no_pod_outside_its_namespaces() {
    let mut local = offloaded("x", "a", 2, USER);
    local.namespace = "research".into();
    assert_eq!(divided(&[local]), (BTreeMap::from([("a".to_owned(), 2)]), Vec::new()));
}

#[test]
fn cpu_beyond_the_lease_is_local_use_and_no_drift() {
    let pods: Vec<PodFacts> = ["x", "y", "z"].iter().map(|name| pod("comity-lease-7", name, "a", 0, 1)).collect();
    let guests = guests();
    let NodeUse { local, drifted, .. } = divide(&pods, &guests, &TEST_SALT);
    assert_eq!((local["a"]["cpu"], drifted), (1_000, Vec::new()), "two of three cores are lent");
}

#[test]
fn a_drifted_pod_says_what_it_may_have() {
    let pods = [pod("comity-lease-7", "old", "b", 1, 1), pod("comity-lease-7", "young", "b", 2, 2)];
    let guests = guests();
    let drifted = divide(&pods, &guests, &TEST_SALT).drifted;
    let found: Vec<_> = drifted.iter().map(|pod| (pod.lease, pod.node.as_str(), pod.allowed, pod.held)).collect();
    assert_eq!(found, [(LeaseId(7), "b", 1, 2)]);
}
