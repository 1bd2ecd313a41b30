//! Devices of a DRA driver on a real API server and scheduler, without a driver: its ResourceSlice is written here.

use std::sync::Arc;

use comity_agent::observe::{self, InventorySettings, LocalReserve};
use comity_agent_delivery::{DonorDelivery as _, DonorLease};
use comity_agent_model::lease::placement::{DeviceShare, NodePlacement, Placement};
use comity_agent_model::node_id::NodeSalt;
use comity_agent_workload::lease_pods::LeasePodsReview;
use comity_runtime::SystemClock;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::burst::{free_port, no_webhooks, served};
use crate::cluster::{Cluster, PATIENCE, SALT, eventually, lease, pod, refusal};

const CLASS_DEVICES: &str = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices";
const NODE: &str = "cpu-1";

/// Three GPUs of the node without a device plugin.
fn slice() -> Value {
    let device = |number: u32| {
        json!({
            "name": format!("gpu-{number}"), "capacity": { "memory": { "value": "81559Mi" } },
            "attributes": {
                "type": { "string": "gpu" }, "uuid": { "string": format!("GPU-{number}") },
                "productName": { "string": "NVIDIA H100 80GB HBM3" },
            },
        })
    };
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": "gpus-of-cpu-1" },
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": NODE, "devices": [device(0), device(1), device(2)],
            "pool": { "name": NODE, "generation": 1, "resourceSliceCount": 1 },
        },
    })
}

/// The second of them.
fn lease_of_one() -> DonorLease {
    let device = DeviceShare { device: 1, milli: 1_000, ..DeviceShare::default() };
    let nodes = vec![NodePlacement { node: SALT.node_id(NODE), devices: vec![device], ..NodePlacement::default() }];
    let placement =
        Placement { resource_name: CLASS_DEVICES.into(), resource_count: 1, nodes, ..lease("lease-60").placement };
    DonorLease { placement, ..lease("lease-60") }
}

fn claim(name: &str, change: impl FnOnce(&mut Value)) -> ResourceClaim {
    let mut wanted = json!({ "deviceClassName": "gpu.nvidia.com" });
    change(&mut wanted);
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": wanted }] } },
    }))
    .unwrap()
}

pub(crate) async fn devices_of_a_driver_are_lent_by_claims(cluster: &Cluster) {
    let plane = cluster.plane();
    let settings =
        InventorySettings { salt: NodeSalt::new([4; 32]), reserve: LocalReserve::default(), rdma: Vec::new() };
    let id = settings.salt.node_id(NODE);
    let inventory = observe::kubernetes::observe(&cluster.agent, settings, observe::no_leases());
    let mut nodes = inventory.nodes();
    let donor = cluster.donor();
    let lease = lease_of_one();
    let error = donor.prepare(&lease).await.unwrap_err().to_string();
    assert!(error.contains("no DeviceClass gpu.nvidia.com"), "{error}");
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": { "name": "gpu.nvidia.com" },
        "spec": { "selectors": [{ "cel": { "expression": "device.driver == 'gpu.nvidia.com'" } }] },
    });
    plane.kubectl_with_input(&["apply", "-f", "-"], &class.to_string()).await.unwrap();
    plane.kubectl_with_input(&["apply", "-f", "-"], &slice().to_string()).await.unwrap();
    let is_offered = |node: &comity_proto::v1::Node| {
        node.id == id && node.devices.len() == 3 && node.enforces.is_some_and(|enforces| enforces.devices)
    };
    let offered = nodes.wait_for(|nodes| nodes.as_ref().is_some_and(|nodes| nodes.iter().any(is_offered)));
    assert!(tokio::time::timeout(PATIENCE, offered).await.is_ok(), "not offered");

    donor.prepare(&lease).await.unwrap();
    donor.prepare(&lease).await.unwrap();
    let tenant = cluster.tenant(&donor.credential(&lease).await.unwrap());
    let mut wanted = serde_json::to_value(pod("work", "nvidia.com/gpu", 0)).unwrap();
    wanted["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": "gpu-0" }]);
    wanted["spec"]["containers"][0]["resources"] = json!({ "claims": [{ "name": "gpu" }] });
    let wanted: Pod = serde_json::from_value(wanted).unwrap();
    Api::default_namespaced(tenant.clone()).create(&PostParams::default(), &wanted).await.unwrap();
    let claims = Api::<ResourceClaim>::default_namespaced(tenant.clone());
    eventually("the scheduler allocates the very device", || async {
        let all = claims.list(&ListParams::default()).await.unwrap().items;
        assert_eq!(all.len(), 1);
        let allocation = all[0].status.as_ref().and_then(|status| status.allocation.as_ref());
        let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
        results.is_some_and(|results| results.len() == 1 && results[0].device == "gpu-1" && results[0].pool == NODE)
    })
    .await;

    Api::<Pod>::default_namespaced(tenant.clone()).delete("work", &DeleteParams::default()).await.unwrap();
    an_unchanged_pod_gets_the_claim(cluster, &tenant).await;

    // The agent's right to make claims ends at the namespaces of leases, and at one device each.
    for (namespace, claim, part) in [
        ("research", claim("gpu-0", |_| {}), "only objects in the namespaces"),
        ("comity-lease-60", claim("other", |_| {}), "called gpu-N"),
        ("comity-lease-60", claim("gpu-9", |wanted| wanted["count"] = json!(2)), "takes one device"),
        ("comity-lease-60", claim("gpu-9", |wanted| wanted["allocationMode"] = json!("All")), "takes one device"),
    ] {
        let claims = Api::<ResourceClaim>::namespaced(cluster.agent.client(), namespace);
        let (code, message) = refusal(claims.create(&PostParams::default(), &claim).await);
        assert!((code == 403 || code == 422) && message.contains(part), "{code} {message}");
    }

    donor.remove(LeaseId(60)).await.unwrap();
    let left = Api::<ResourceClaim>::all(cluster.admin()).list(&ListParams::default()).await.unwrap();
    assert!(left.items.is_empty(), "{left:?}");
    plane.kubectl(&["delete", "resourceslice", "gpus-of-cpu-1"]).await.unwrap();
    let gone = nodes.wait_for(|nodes| nodes.as_ref().is_some_and(|nodes| nodes.iter().all(|node| node.id != id)));
    assert!(tokio::time::timeout(PATIENCE, gone).await.is_ok(), "still offered");
}

/// The agent's webhook turns a number of GPUs into claims, and refuses what the lease does not have.
async fn an_unchanged_pod_gets_the_claim(cluster: &Cluster, tenant: &kube::Client) {
    let review = LeasePodsReview::new(cluster.agent.client(), Arc::new(SystemClock::new()));
    let stop = CancellationToken::new();
    let task = tokio::spawn(served(cluster, free_port(), Box::new(review), stop.clone()));
    let pods = Api::<Pod>::default_namespaced(tenant.clone());
    // Without the webhook the quota refuses GPUs of a device plugin.
    eventually("the webhook is asked", || async {
        let made = pods.create(&PostParams::default(), &pod("unchanged", "nvidia.com/gpu", 1)).await;
        let claims = made.ok().and_then(|pod| pod.spec?.resource_claims).unwrap_or_default();
        claims.first().and_then(|claim| claim.resource_claim_name.as_deref()) == Some("gpu-0")
    })
    .await;
    let (code, message) = refusal(pods.create(&PostParams::default(), &pod("second", "nvidia.com/gpu", 1)).await);
    assert!(code == 403 && message.contains("no node of the lease has that many GPUs"), "{code} {message}");
    pods.delete("unchanged", &DeleteParams::default()).await.unwrap();
    stop.cancel();
    task.await.unwrap();
    no_webhooks(cluster).await;
}
