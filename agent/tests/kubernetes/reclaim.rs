//! A reclaim as pods and people see it on a real API server, and their answers.

use comity_agent_workload::crd::GpuLease;
use comity_agent_workload::reclaim::{CHECKPOINTED, RECLAIM_AT, RECLAIM_REASON};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::watch;

use crate::broker::Broker;
use crate::burst::{Running, annotation, events_say, virtual_node};
use crate::cluster::{Cluster, eventually, pod};

const LEASE: &str = "lease-70";
/// This namespace has not opted in to bursts: a lease's pods are notified anyway.
const NAMESPACE: &str = "research";
const AT: (u64, &str) = (4_000_000_000_000, "2096-10-02T07:06:40Z");
const LATER: (u64, &str) = (4_000_003_600_000, "2096-10-02T08:06:40Z");

pub(crate) async fn a_reclaim_is_announced_and_answered(cluster: &Cluster) {
    let (broker, nodes) = (Broker::new(), watch::Sender::new(None));
    virtual_node(cluster, LEASE, 2).await;
    let pods = Api::<Pod>::namespaced(cluster.admin(), NAMESPACE);
    let mut work = pod("work", "nvidia.com/gpu", 1);
    let spec = work.spec.as_mut().unwrap();
    spec.node_name = Some(LEASE.to_owned());
    spec.tolerations = Some(serde_json::from_value(json!([{ "operator": "Exists" }])).unwrap());
    work.metadata.annotations = Some([("example.org/theirs".to_owned(), "kept".to_owned())].into());
    pods.create(&PostParams::default(), &work).await.unwrap();
    eventually("the pod runs", || async { phase(&pods).await.as_deref() == Some("Running") }).await;
    broker.lend(LEASE, NAMESPACE);
    let running = Running::start(cluster, &broker, &nodes, None);

    a_pod_is_notified_of_the_deadline_and_the_reason(cluster, &broker, &pods).await;
    answer(&pods).await;
    let saved = || async { running.saved.borrow().by_pods.contains(&LEASE.parse().unwrap()) };
    eventually("the answer is heard", saved).await;

    broker.reclaim(LEASE, None);
    eventually("the pod is told that it stays", || async {
        let pod = pods.get("work").await.unwrap();
        [RECLAIM_AT, RECLAIM_REASON, CHECKPOINTED].iter().all(|key| annotation(&pod, key).is_none())
            && annotation(&pod, "example.org/theirs") == Some("kept")
    })
    .await;
    eventually("nothing is reported any more", || async { running.saved.borrow().leases().is_empty() }).await;
    eventually("an event says so", || events_say(cluster, NAMESPACE, "ComityReclaimWithdrawn")).await;

    // After a second notice the answer to the first does not count; people may answer for the whole lease.
    answer(&pods).await;
    broker.reclaim(LEASE, Some(LATER.0));
    eventually("it is told the later time", || async {
        let pod = pods.get("work").await.unwrap();
        annotation(&pod, RECLAIM_AT) == Some(LATER.1) && annotation(&pod, CHECKPOINTED).is_none()
    })
    .await;
    let leases = Api::<GpuLease>::namespaced(cluster.admin(), NAMESPACE);
    eventually("the GpuLease says so too", || async {
        let marks = leases.get(LEASE).await.unwrap().metadata.annotations.unwrap_or_default();
        marks.get(RECLAIM_AT).map(String::as_str) == Some(LATER.1)
    })
    .await;
    let yes = Patch::Merge(json!({ "metadata": { "annotations": { CHECKPOINTED: "true" } } }));
    leases.patch(LEASE, &PatchParams::default(), &yes).await.unwrap();
    eventually("the answer on the GpuLease is heard", || async {
        running.saved.borrow().by_hand.contains(&LEASE.parse().unwrap())
    })
    .await;
    assert!(running.saved.borrow().by_pods.is_empty(), "the pod did not answer");

    pods.delete("work", &DeleteParams::default().grace_period(0)).await.unwrap();
    eventually("of a lease on which nothing runs the work is saved", saved).await;
    running.stop().await;
    cluster.plane().kubectl(&["delete", "node", LEASE]).await.unwrap();
    cluster.plane().kubectl(&["delete", "gpulease", LEASE, "-n", NAMESPACE]).await.unwrap();
}

async fn a_pod_is_notified_of_the_deadline_and_the_reason(cluster: &Cluster, broker: &Broker, pods: &Api<Pod>) {
    broker.reclaim(LEASE, Some(AT.0));
    eventually("the pod is told until when it can run", || async {
        let pod = pods.get("work").await.unwrap();
        annotation(&pod, RECLAIM_AT) == Some(AT.1) && annotation(&pod, RECLAIM_REASON) == Some("local-need")
    })
    .await;
    eventually("an event says so", || events_say(cluster, NAMESPACE, "ComityReclaim")).await;
    let leases = Api::<GpuLease>::namespaced(cluster.admin(), NAMESPACE);
    eventually("the GpuLease has the condition", || async {
        let status = leases.get(LEASE).await.unwrap().status.unwrap_or_default();
        let is_reclaimed = status.conditions.iter().any(|one| {
            (one.type_.as_str(), one.status.as_str(), one.reason.as_str()) == ("Reclaiming", "True", "LocalNeed")
        });
        is_reclaimed && status.reclaim_at.as_deref() == Some(AT.1)
    })
    .await;
    let row = cluster.plane().kubectl(&["get", "gpul", "-n", NAMESPACE, "--no-headers"]).await.unwrap();
    assert!(row.contains("Reclaiming") && row.contains(AT.1), "{row}");
}

async fn phase(pods: &Api<Pod>) -> Option<String> {
    pods.get("work").await.unwrap().status.and_then(|status| status.phase)
}

/// Answers as the workload's own hook would.
async fn answer(pods: &Api<Pod>) {
    let yes = Patch::Merge(json!({ "metadata": { "annotations": { CHECKPOINTED: "true" } } }));
    pods.patch("work", &PatchParams::default(), &yes).await.unwrap();
}
