//! The nodes that a virtual node's pods may run on, chosen and labelled on a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comity_agent_delivery::{DonorLease, NodeLender, VirtualNodeDonor as _};
use comity_agent_liqo::LiqoPeer;
use comity_agent_liqo::donor::{DonorSettings, Grants, LiqoDonor, PolicyKeeper, PolicySettings};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::placement::{NodePlacement, Placement};
use comity_agent_workload::lease_pods::LeasePodsReview;
use comity_runtime::SystemClock;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::burst::{free_port, no_webhooks, served};
use crate::cluster::{Cluster, PATIENCE, SALT, eventually, lease, pod, refusal};
use crate::drift::{GPU, GPUS_OF_LEASE, on_two_nodes};

const LABEL: &str = "lease.comity.dev/lease-70";

async fn labelled(nodes: &Api<Node>) -> BTreeSet<String> {
    let all = nodes.list(&Default::default()).await.unwrap();
    all.items.iter().filter(|node| node.labels().contains_key(LABEL)).map(ResourceExt::name_any).collect()
}

fn lender(cluster: &Cluster) -> NodeLender {
    let settings = DonorSettings::new("donor", cluster.agent.target(), "", cluster.agent.ca_pem());
    let liqo = LiqoDonor::new(cluster.agent.client(), settings);
    NodeLender::new(cluster.agent.client(), liqo, SALT, watch::channel(Arc::default()).1)
}

fn peer() -> LiqoPeer {
    LiqoPeer { peering: "peer-1".into(), cluster: "polytechnic".into(), liqo_id: "origin".into() }
}

pub(crate) async fn pods_of_a_lease_stay_on_its_nodes(cluster: &Cluster) {
    let client = cluster.agent.client();
    let lender = lender(cluster).with_webhook();
    let peer = peer();
    let on = |names: &[&str]| {
        let placed = names.iter().map(|name| NodePlacement { node: SALT.node_id(name), ..Default::default() });
        let lease = lease("lease-70");
        DonorLease { placement: Placement { nodes: placed.collect(), ..lease.placement.clone() }, ..lease }
    };
    let nodes = Api::<Node>::all(cluster.admin());

    eventually("Liqo's kind is served", || async { lender.prepare(&peer, &on(&["gpu-1"])).await.is_ok() }).await;
    let grant = lender.prepare(&peer, &on(&["gpu-1"])).await.unwrap().grant;
    assert_eq!(grant.node_selector["kubernetes.io/hostname"], "gpu-1");
    assert_eq!((grant.resources["nvidia.com/gpu"].as_str(), grant.origin_liqo_id.as_str()), ("3", "origin"));
    assert!(labelled(&nodes).await.is_empty());

    let both = BTreeSet::from(["gpu-1".to_owned(), "gpu-2".to_owned()]);
    let grant = lender.prepare(&peer, &on(&["gpu-1", "gpu-2"])).await.unwrap().grant;
    assert_eq!(grant.node_selector[LABEL], "true");
    assert_eq!(labelled(&nodes).await, both);
    assert!(lender.list().await.unwrap().contains(&LeaseId(70)));

    // A label that somebody else put on a third node is removed: the lease's pods could run there.
    let extra = Patch::Merge(json!({ "metadata": { "labels": { LABEL: "true" } } }));
    nodes.patch("cpu-1", &PatchParams::default(), &extra).await.unwrap();
    lender.prepare(&peer, &on(&["gpu-1", "gpu-2"])).await.unwrap();
    assert_eq!(labelled(&nodes).await, both);

    // A Node object that was made again has no label.
    let lost = Patch::Merge(json!({ "metadata": { "labels": { LABEL: null } } }));
    nodes.patch("gpu-2", &PatchParams::default(), &lost).await.unwrap();
    lender.reopen(&on(&["gpu-1", "gpu-2"])).await.unwrap();
    assert_eq!(labelled(&nodes).await, both);

    lender.remove(LeaseId(70), "lease-70", None).await.unwrap();
    lender.remove(LeaseId(70), "lease-70", None).await.unwrap();
    assert!(labelled(&nodes).await.is_empty() && !lender.list().await.unwrap().contains(&LeaseId(70)));

    // The right to label nodes gives no right to change them.
    let own = Api::<Node>::all(client);
    let refused = async |patch: serde_json::Value| {
        own.patch("cpu-1", &PatchParams::default(), &Patch::Merge(&patch)).await.is_err()
    };
    let cordon = json!({ "spec": { "unschedulable": true } });
    eventually("the agent is kept from cordoning nodes", || refused(cordon.clone())).await;
    assert!(refused(json!({ "metadata": { "labels": { "nvidia.com/gpu.product": "another" } } })).await);
    assert!(refused(json!({ "metadata": { "annotations": { "a": "b" } } })).await);
    // The garbage collector would delete a node whose owner does not exist.
    let owner = json!({ "apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "0-0-0-0" });
    assert!(refused(json!({ "metadata": { "ownerReferences": [owner] } })).await);
    assert!(refused(json!({ "metadata": { "finalizers": ["example.com/stuck"] } })).await);
}

/// Two nodes with eight GPUs each. The lease has two GPUs of one node and one of the other.
pub(crate) async fn a_virtual_node_is_counted_on_each_of_its_nodes(cluster: &Cluster) {
    let lease = on_two_nodes();
    let refused = lender(cluster).prepare(&peer(), &lease).await.unwrap_err();
    assert!(matches!(refused, DeliveryError::Permanent { code: "nodes-not-counted", .. }), "{refused}");

    let lender = lender(cluster).with_webhook();
    let grant = lender.prepare(&peer(), &lease).await.unwrap().grant;
    let policies = include_str!("../../../../deploy/agent/liqo-policies.yaml");
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], policies).await.unwrap();
    let grants = watch::Sender::new(Arc::new(Grants([("lease-51".to_owned(), grant)].into())));
    let keeper = PolicyKeeper::start(
        cluster.agent.client(),
        PolicySettings::default(),
        "donor",
        grants.subscribe(),
        tokio::spawn,
    );
    let mut health = keeper.health();
    tokio::time::timeout(PATIENCE, health.wait_for(Result::is_ok)).await.expect("no policies").unwrap();

    // As Liqo makes it, with a pod as Liqo's controller makes it: it is no consumer.
    let labels = json!({ "liqo.io/remote-cluster-id": "origin", "pod-security.kubernetes.io/enforce": "baseline" });
    let namespace = json!({ "metadata": { "name": "team-a-origin", "labels": labels } });
    let namespaces = Api::<Namespace>::all(cluster.admin());
    namespaces.create(&PostParams::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    let pods = Api::<Pod>::namespaced(cluster.admin(), "team-a-origin");
    let of_lease = |name: &str, lease: &str| {
        let mut pod = pod(name, GPU, 1);
        pod.spec.as_mut().unwrap().node_selector = Some([(format!("lease.comity.dev/{lease}"), "true".into())].into());
        pod
    };
    let create = async |pod: Pod| pods.create(&PostParams::default(), &pod).await;
    eventually("the policy refuses pods that no webhook completed", || async {
        let result = create(of_lease("bare", "lease-51")).await;
        if result.is_ok() {
            pods.delete("bare", &DeleteParams::default().grace_period(0)).await.unwrap();
        }
        result.is_err_and(|error| error.to_string().contains("requests as many gpus.lease.comity.dev/lease-51"))
    })
    .await;
    let (_, message) = refusal(create(of_lease("foreign", "lease-52")).await);
    assert!(message.contains("no lease in force counts its GPUs on each node as lease-52"), "{message}");
    // A PriorityClass with globalDefault has the same effect on a pod that names none.
    let mut urgent = pod("urgent", GPU, 1);
    urgent.spec.as_mut().unwrap().priority_class_name = Some("system-cluster-critical".into());
    let (_, message) = refusal(create(urgent).await);
    assert!(message.contains("do not push away this cluster's own"), "{message}");

    let stop = CancellationToken::new();
    let review = LeasePodsReview::new(cluster.agent.client(), Arc::new(SystemClock::new()));
    let serving = tokio::spawn(served(cluster, free_port(), Box::new(review), stop.clone()));
    eventually("the webhook completes pods", || async { create(of_lease("one", "lease-51")).await.is_ok() }).await;
    for name in ["two", "three", "four"] {
        create(of_lease(name, "lease-51")).await.unwrap();
    }
    let mut nodes = BTreeMap::new();
    let node_of = async |name: &str| pods.get(name).await.unwrap().spec.unwrap().node_name;
    for name in ["one", "two", "three"] {
        eventually("the pod is placed", || async { node_of(name).await.is_some() }).await;
        *nodes.entry(node_of(name).await.unwrap()).or_insert(0) += 1;
    }
    assert_eq!(nodes, BTreeMap::from([("gpu-1".to_owned(), 2), ("gpu-2".to_owned(), 1)]));
    eventually("the scheduler says why the fourth waits", || async {
        let conditions = pods.get("four").await.unwrap().status.unwrap().conditions.unwrap_or_default();
        conditions.into_iter().filter_map(|one| one.message).any(|text| text.contains(GPUS_OF_LEASE))
    })
    .await;

    stop.cancel();
    serving.await.unwrap();
    no_webhooks(cluster).await;
    namespaces.delete("team-a-origin", &DeleteParams::default()).await.unwrap();
    eventually("its pods are gone", || async { pods.list(&Default::default()).await.unwrap().items.is_empty() }).await;
    lender.remove(LeaseId(51), "lease-51", None).await.unwrap();
    assert!(!lender.list().await.unwrap().contains(&LeaseId(51)), "labels and resources are gone");
}
