//! The nodes that a virtual node's pods may run on, chosen and labelled on a real API server.

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_agent_delivery::{DonorLease, NodeLender, VirtualNodeDonor as _};
use comity_agent_liqo::LiqoPeer;
use comity_agent_liqo::donor::{DonorSettings, LiqoDonor};
use comity_agent_model::lease::placement::{NodePlacement, Placement};
use comity_agent_model::node_id::NodeSalt;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::watch;

use crate::cluster::{Cluster, eventually, lease};

const LABEL: &str = "lease.comity.dev/lease-70";

async fn labelled(nodes: &Api<Node>) -> BTreeSet<String> {
    let all = nodes.list(&Default::default()).await.unwrap();
    all.items.iter().filter(|node| node.labels().contains_key(LABEL)).map(ResourceExt::name_any).collect()
}

pub(crate) async fn pods_of_a_lease_stay_on_its_nodes(cluster: &Cluster) {
    let salt = NodeSalt::new([7; 32]);
    let client = cluster.agent.client();
    let liqo =
        LiqoDonor::new(client.clone(), DonorSettings::new("donor", cluster.agent.target(), "", cluster.agent.ca_pem()));
    let lender = NodeLender::new(client.clone(), liqo, salt.clone(), watch::channel(Arc::default()).1);
    let peer = LiqoPeer { peering: "peer-1".into(), cluster: "polytechnic".into(), liqo_id: "origin".into() };
    let on = |names: &[&str]| {
        let placed = names.iter().map(|name| NodePlacement { node: salt.node_id(name), ..Default::default() });
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
    assert_eq!(lender.list().await.unwrap(), BTreeSet::from([LeaseId(70)]));

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
    assert!(labelled(&nodes).await.is_empty() && lender.list().await.unwrap().is_empty());

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
