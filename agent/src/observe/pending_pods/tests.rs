#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_agent_model::lent::{LentLease, NodeMark, PodsOf};
use comity_types::LeaseId;
use serde_json::{Value, json};

use super::*;
use crate::observe::TEST_SALT;
use crate::observe::lent_pods::Guests;
use crate::observe::node_facts::NodeFacts;
use crate::observe::partial_object::Partial;
use crate::observe::pod_facts::Names;

const POD_GPU: &str = "nvidia.com/gpu";
const SECOND: Duration = Duration::from_secs(1);

fn node(name: &str, gpus: u32, cpu: u32) -> NodeFacts {
    let amounts = json!({ "cpu": cpu.to_string(), "memory": "64Gi", POD_GPU: gpus.to_string() });
    let node = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
        "status": {
            "allocatable": amounts, "capacity": amounts, "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    let Partial(node) = serde_json::from_value(node).unwrap();
    NodeFacts::of(&node).unwrap()
}

fn raw_pod(namespace: &str, name: &str, gpus: u32) -> Value {
    json!({
        "metadata": { "namespace": namespace, "name": name, "uid": name },
        "spec": { "containers": [{ "name": "c", "resources": { "limits": { "cpu": "2", POD_GPU: gpus.to_string() } } }] },
        "status": { "phase": "Pending" },
    })
}

/// A pod that the scheduler could not place.
fn refused(name: &str, gpus: u32) -> Value {
    let mut pod = raw_pod("research", name, gpus);
    pod["status"]["conditions"] = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: 0/2 nodes are available.",
    }]);
    pod
}

fn pending(pod: &Value) -> Option<PendingPod> {
    let Partial(pod) = serde_json::from_value(pod.clone()).unwrap();
    PendingPod::of(&pod)
}

/// Node `big` has eight GPUs and `small` has four. Lease-1 has three GPUs of `big` and two of `small`.
struct Donor {
    nodes: Vec<NodeFacts>,
    guests: Guests,
    running: Vec<PodFacts>,
    pending: PendingPods,
    began: Instant,
}

impl Donor {
    fn new(settings: ReclaimForPending) -> Self {
        let amounts = |gpus: u64| BTreeMap::from([(POD_GPU.to_owned(), gpus), ("cpu".to_owned(), 64_000)]);
        let lease = LentLease {
            pods: PodsOf::Namespace,
            mark: NodeMark::Nothing,
            resource: POD_GPU.to_owned(),
            is_wanted: true,
            nodes: [(TEST_SALT.node_id("big"), amounts(3)), (TEST_SALT.node_id("small"), amounts(2))].into(),
        };
        let guests = Guests {
            lease_namespaces: [("comity-lease-1".to_owned(), LeaseId(1))].into(),
            leases: Arc::new([(LeaseId(1), lease)].into()),
            ..Guests::default()
        };
        let (nodes, pending) = (vec![node("big", 8, 64), node("small", 4, 64)], PendingPods::new(settings));
        Self { nodes, guests, running: Vec::new(), pending, began: Instant::now() }
    }

    fn run(&mut self, namespace: &str, node: &str, gpus: u32) {
        let mut pod = raw_pod(namespace, &format!("{namespace}-{node}"), gpus);
        pod["spec"]["nodeName"] = json!(node);
        let Partial(pod) = serde_json::from_value(pod).unwrap();
        self.running.push(Names::default().facts_of(&pod).unwrap());
    }

    /// Runs the lease's pods, and local pods on all other GPUs.
    fn fill(&mut self) {
        for (namespace, node, gpus) in
            [("comity-lease-1", "big", 3), ("comity-lease-1", "small", 2), ("local", "big", 5), ("local", "small", 2)]
        {
            self.run(namespace, node, gpus);
        }
    }

    fn end(&mut self, namespace: &str, node: &str) {
        self.running.retain(|pod| !(*pod.namespace == *namespace && *pod.node == *node));
    }

    /// The nodes and GPUs of the pods that count at a time.
    fn counted(&mut self, pods: &[Value], at: Duration) -> Vec<(String, u64)> {
        let pods: Vec<PendingPod> = pods.iter().filter_map(pending).collect();
        let nodes: Vec<&NodeFacts> = self.nodes.iter().collect();
        let cluster = ClusterFacts { nodes: &nodes, guests: &self.guests, salt: &TEST_SALT };
        let counted = self.pending.counted(pods.iter(), self.running.iter(), &cluster, self.began + at);
        counted.iter().map(|pod| (pod.node.to_string(), pod.request(POD_GPU))).collect()
    }
}

fn after_a_minute() -> ReclaimForPending {
    ReclaimForPending::default()
}

fn on(node: &str, gpus: u64) -> Vec<(String, u64)> {
    vec![(node.to_owned(), gpus)]
}

#[test]
fn a_pod_counts_after_a_while_where_the_fewest_leased_gpus_are_in_its_way() {
    let mut donor = Donor::new(after_a_minute());
    donor.fill();
    donor.end("local", "big");
    donor.run("local", "big", 4);
    let pod = [refused("a", 2)];
    assert_eq!(donor.counted(&pod, SECOND), []);
    assert_eq!(donor.pending.next_due(donor.began + SECOND), Some(donor.began + 61 * SECOND));
    assert_eq!(donor.counted(&pod, 60 * SECOND), []);
    assert_eq!(donor.counted(&pod, 61 * SECOND), on("big", 2), "one POD_GPU of big is free");
    assert_eq!(donor.counted(&[], 62 * SECOND), [], "it is gone");
    assert_eq!(donor.counted(&pod, 63 * SECOND), [], "it waits again");
}

#[test]
fn a_pod_without_room_even_without_leases_does_not_count() {
    let mut donor = Donor::new(after_a_minute());
    donor.fill();
    let pods = [refused("a", 4)];
    donor.counted(&pods, SECOND);
    assert_eq!(donor.counted(&pods, 300 * SECOND), []);
    donor.end("local", "big");
    donor.run("local", "big", 4);
    assert_eq!(donor.counted(&pods, 301 * SECOND), on("big", 4), "one more POD_GPU is free");
}

#[test]
fn a_pod_that_fits_now_waits_for_something_else() {
    let mut donor = Donor::new(after_a_minute());
    donor.fill();
    donor.end("local", "small");
    let pods = [refused("a", 2)];
    donor.counted(&pods, SECOND);
    assert_eq!(donor.counted(&pods, 61 * SECOND), []);
}

#[test]
fn a_lack_of_cpu_alone_ends_no_lease() {
    let mut donor = Donor::new(after_a_minute());
    donor.nodes = vec![node("big", 9, 4)];
    donor.run("comity-lease-1", "big", 3);
    donor.run("local", "big", 5);
    let pods = [refused("a", 1)];
    donor.counted(&pods, SECOND);
    assert_eq!(donor.counted(&pods, 61 * SECOND), [], "one POD_GPU is free, and the lease uses the CPU");
    donor.nodes = vec![node("big", 8, 6)];
    assert_eq!(donor.counted(&pods, 62 * SECOND), on("big", 1));
}

#[test]
fn a_counted_pod_keeps_its_node_until_the_scheduler_has_tried_again() {
    let mut donor = Donor::new(after_a_minute());
    donor.fill();
    let pods = [refused("a", 3)];
    donor.counted(&pods, SECOND);
    assert_eq!(donor.counted(&pods, 61 * SECOND), on("big", 3));
    donor.end("comity-lease-1", "big");
    assert_eq!(donor.counted(&pods, 100 * SECOND), on("big", 3), "the lease has ended");
    assert_eq!(donor.pending.next_due(donor.began + 100 * SECOND), Some(donor.began + 160 * SECOND));
    assert_eq!(donor.counted(&pods, 159 * SECOND), on("big", 3));
    assert_eq!(donor.counted(&pods, 160 * SECOND), [], "the scheduler has another reason");
    donor.run("comity-lease-1", "big", 3);
    assert_eq!(donor.counted(&pods, 500 * SECOND), [], "no second lease is reclaimed for it");
}

#[test]
fn a_counted_pod_moves_if_local_work_takes_its_place() {
    let mut donor = Donor::new(after_a_minute());
    donor.fill();
    let pods = [refused("a", 2)];
    donor.counted(&pods, SECOND);
    assert_eq!(donor.counted(&pods, 61 * SECOND), on("big", 2));
    donor.end("comity-lease-1", "big");
    donor.run("other", "big", 2);
    assert_eq!(donor.counted(&pods, 62 * SECOND), on("small", 2));
}

#[test]
fn pods_do_not_count_the_same_gpus() {
    let mut donor = Donor::new(after_a_minute());
    donor.fill();
    let mut first = refused("z", 2);
    first["spec"]["priority"] = json!(5);
    let pods = [refused("a", 2), refused("b", 2), first];
    donor.counted(&pods, SECOND);
    assert_eq!(donor.counted(&pods, 61 * SECOND), [on("big", 2), on("small", 2)].concat());
}

#[test]
fn only_pods_of_the_donors_own_that_lack_gpus_are_considered() {
    assert!(pending(&refused("a", 1)).is_some());
    let with = |change: &dyn Fn(&mut Value)| {
        let mut pod = refused("a", 1);
        change(&mut pod);
        pending(&pod)
    };
    let condition = |field: &str, value: &str| with(&|pod| pod["status"]["conditions"][0][field] = json!(value));
    assert_eq!(condition("reason", "SchedulingGated"), None);
    assert_eq!(condition("status", "True"), None);
    assert_eq!(condition("message", "0/2 nodes are available: 2 Insufficient cpu."), None);
    assert_eq!(with(&|pod| pod["spec"]["nodeName"] = json!("big")), None);
    assert_eq!(with(&|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-20T10:00:00Z")), None);
    assert_eq!(with(&|pod| pod["metadata"]["labels"] = json!({ "liqo.io/creator-user": "u" })), None);
    for namespace in ["comity-lease-1", "comity-hold"] {
        assert_eq!(with(&|pod| pod["metadata"]["namespace"] = json!(namespace)), None, "{namespace}");
    }
}

#[test]
fn the_donor_chooses_which_of_its_pods_count() {
    let counts = |settings: ReclaimForPending, priority: i32| {
        let mut donor = Donor::new(settings);
        donor.fill();
        let mut pod = refused("a", 1);
        pod["spec"]["priority"] = json!(priority);
        donor.counted(std::slice::from_ref(&pod), SECOND);
        !donor.counted(&[pod], 61 * SECOND).is_empty()
    };
    let namespaces =
        |name: &str| ReclaimForPending { namespaces: BTreeSet::from([name.to_owned()]), ..after_a_minute() };
    assert!(counts(after_a_minute(), 0) && counts(namespaces("research"), 0));
    assert!(!counts(after_a_minute(), -10), "pods of negative priority only keep nodes warm");
    assert!(!counts(namespaces("production"), 0));
    assert!(!counts(ReclaimForPending { enabled: false, ..after_a_minute() }, 0));
    assert!(!counts(ReclaimForPending { after_seconds: 90, ..after_a_minute() }, 0));
}

#[test]
fn a_pod_counts_only_on_nodes_that_it_may_use() {
    let mut donor = Donor::new(after_a_minute());
    donor.fill();
    let mut pod = refused("a", 1);
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": "small" });
    donor.counted(std::slice::from_ref(&pod), SECOND);
    assert_eq!(donor.counted(std::slice::from_ref(&pod), 61 * SECOND), on("small", 1));
    pod["metadata"]["uid"] = json!("b");
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": "other" });
    donor.counted(std::slice::from_ref(&pod), 62 * SECOND);
    assert_eq!(donor.counted(&[pod], 130 * SECOND), []);
}

#[test]
fn the_number_of_considered_pods_is_bounded() {
    let mut donor = Donor::new(after_a_minute());
    let pods: Vec<Value> = (0..MAX_PENDING_PODS + 10).map(|number| refused(&format!("p{number}"), 9)).collect();
    donor.counted(&pods, SECOND);
    assert_eq!(donor.pending.waits.len(), MAX_PENDING_PODS);
}
