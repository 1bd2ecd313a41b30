use std::sync::Arc;

use comity_agent_kubernetes::pod_resources::NodeDevices;
use comity_agent_model::lent::{LentLease, NodeMark, PodsOf};
use comity_types::LeaseId;

use super::*;
use crate::observe::TEST_SALT;
use crate::observe::lent_pods::divide;
use crate::observe::pod_facts::{GuestPod, GuestStage};

const HELD_RESOURCE: &str = "nvidia.com/gpu";
const NAMESPACE_OF_LEASE: &str = "comity-lease-7";
const CREATED_MS: i64 = 1_000;
const READ_MS: u64 = 60_000;

/// Pods of node a by name.
struct NamedPods(BTreeMap<PodName, PodFacts>);

impl FindPod for NamedPods {
    fn find(&self, pod: &PodName) -> Option<&PodFacts> {
        self.0.get(pod)
    }
}

fn name(namespace: &str, name: &str) -> PodName {
    PodName { namespace: namespace.to_owned(), name: name.to_owned() }
}

fn pod(namespace: &str, name: &str, gpus: u64) -> PodFacts {
    let guest = GuestPod {
        name: name.to_owned(),
        uid: name.to_owned(),
        created_ms: CREATED_MS,
        liqo_user: None,
        lease: None,
        stage: GuestStage::Bound,
    };
    PodFacts {
        namespace: namespace.into(),
        node: "a".into(),
        requests: [("cpu".into(), 1_000), (HELD_RESOURCE.into(), gpus)].into(),
        guest: (namespace == NAMESPACE_OF_LEASE).then(|| Box::new(guest)),
        hami_shares: None,
    }
}

fn pods(all: &[(&str, &str)]) -> NamedPods {
    NamedPods(
        all.iter().map(|(namespace, pod_name)| (name(namespace, pod_name), pod(namespace, pod_name, 1))).collect(),
    )
}

/// lease-7 has one GPU of node a.
fn guests() -> Guests {
    let amounts = BTreeMap::from([(HELD_RESOURCE.to_owned(), 1)]);
    let lease = LentLease {
        pods: PodsOf::Namespace,
        mark: NodeMark::Nothing,
        resource: HELD_RESOURCE.to_owned(),
        is_wanted: true,
        nodes: BTreeMap::from([(TEST_SALT.node_id("a"), amounts)]),
    };
    Guests {
        lease_namespaces: BTreeMap::from([(NAMESPACE_OF_LEASE.to_owned(), LeaseId(7))]),
        leases: Arc::new(BTreeMap::from([(LeaseId(7), lease)])),
        ..Guests::default()
    }
}

fn unit(resource: &str, id: &str) -> DeviceUnit {
    DeviceUnit { resource: resource.to_owned(), id: id.to_owned() }
}

/// The page of node a, with GPU-1 and GPU-2.
fn pages(held: &[(PodName, &[(&str, &str)])]) -> DevicePages {
    let units = |units: &[(&str, &str)]| units.iter().map(|(resource, id)| unit(resource, id)).collect();
    let devices = NodeDevices {
        offered: BTreeSet::from([unit(HELD_RESOURCE, "GPU-1"), unit(HELD_RESOURCE, "GPU-2")]),
        held: held.iter().map(|(pod, held)| (pod.clone(), units(held))).collect(),
    };
    let page = ReadPage { devices, read_at_ms: READ_MS };
    DevicePages { nodes: BTreeMap::from([("a".to_owned(), page)]), failed: 0 }
}

fn owners(table: &DeviceTable) -> Vec<String> {
    let holders = table.of_node("a").flat_map(|(device, held)| {
        held.holders.iter().map(move |holder| format!("{device} {} {}", holder.owner, holder.name))
    });
    holders.collect()
}

#[test]
fn devices_are_held_by_the_donor_by_leases_or_by_nobody_any_more() {
    let holders = [
        (name("research", "own"), &[(HELD_RESOURCE, "GPU-1")][..]),
        (name(NAMESPACE_OF_LEASE, "train"), &[(HELD_RESOURCE, "GPU-2")]),
        (name(NAMESPACE_OF_LEASE, "finished"), &[(HELD_RESOURCE, "GPU-2")]),
    ];
    let seen = pods(&[("research", "own"), (NAMESPACE_OF_LEASE, "train")]);
    let found = table(&pages(&holders), &seen, &guests(), &DraDevices::default());
    assert_eq!(owners(&found), ["GPU-1 local own", "GPU-2 lease-7 train", "GPU-2 gone finished"]);
    assert_eq!(found.conflicts(), []);
    assert_eq!(found.readers(), ReaderCounts { read: 1, failed: 0 });
    let nobody = Guests { leases: Arc::default(), ..guests() };
    let found = table(&pages(&holders[1..2]), &seen, &nobody, &DraDevices::default());
    assert_eq!(owners(&found), ["GPU-2 local train"], "its lease is not in force");
}

#[test]
fn a_page_counts_only_pods_of_its_node() {
    let mut seen = pods(&[("research", "own")]);
    seen.0.values_mut().for_each(|pod| pod.node = "b".into());
    let found = table(
        &pages(&[(name("research", "own"), &[(HELD_RESOURCE, "GPU-1")])]),
        &seen,
        &guests(),
        &DraDevices::default(),
    );
    assert_eq!(owners(&found), ["GPU-1 gone own"]);
}

#[test]
fn a_pod_that_holds_more_than_its_lease_has_drifts() {
    let train = pod(NAMESPACE_OF_LEASE, "train", 1);
    let drifted = |held: &[(&str, &str)], pod: &PodFacts| {
        let pages = pages(&[(name(NAMESPACE_OF_LEASE, "train"), held)]);
        let pod = with_held(pod, &pages).into_owned();
        let found = divide([&pod], &guests(), &TEST_SALT).drifted;
        found.into_iter().map(|pod| (pod.resource, pod.allowed, pod.held)).collect::<Vec<_>>()
    };
    assert_eq!(drifted(&[(HELD_RESOURCE, "GPU-1")], &train), []);
    assert_eq!(drifted(&[], &train), [], "its container does not run yet");
    assert_eq!(
        drifted(&[(HELD_RESOURCE, "GPU-1"), (HELD_RESOURCE, "GPU-2")], &train),
        [(HELD_RESOURCE.to_owned(), 1, 2)]
    );
    let mig = "nvidia.com/mig-1g.10gb";
    assert_eq!(drifted(&[(HELD_RESOURCE, "GPU-1"), (mig, "MIG-1")], &train), [(mig.to_owned(), 0, 1)], "another class");
    let mut young = train;
    young.guest.as_mut().expect("a guest").created_ms = i64::try_from(READ_MS - YOUNGER_BY_MS).expect("small") + 1;
    assert_eq!(
        drifted(&[(HELD_RESOURCE, "GPU-1"), (HELD_RESOURCE, "GPU-2")], &young),
        [],
        "the page may show an earlier pod of that name"
    );
}
