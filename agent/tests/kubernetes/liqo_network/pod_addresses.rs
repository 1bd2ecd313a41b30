//! Addresses of remapped pods, translated by the agent's webhook on a real API server. The test writes what Liqo's
//! virtual-kubelet and controller manager write, in their names.

use std::sync::Arc;

use comity_agent::reconcile::parts::RemapBook;
use comity_agent::services::remapped_addresses::{REMAPPED_ADDRESSES_WEBHOOK, RemappedAddressesReview};
use comity_agent_state::record::{HpkePublicKey, PeeringRecord, RemoteKeys, RemoteNetwork, SecretKey};
use comity_agent_state::store::Store;
use comity_proto::v1;
use comity_runtime::{IdentityKey, SeededEntropy};
use comity_types::{PeeringId, Side};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::burst::{free_port, served};
use crate::cluster::{Cluster, eventually};

const NAMESPACE: &str = "remapped";
/// The account of the virtual-kubelet of donor south.
const KUBELET: &str = "--as=system:serviceaccount:liqo-tenant-south-liqo:lease-1";
const MANAGER: &str = "--as=system:serviceaccount:liqo:liqo-controller-manager";
/// Both accounts have every right here: the test is about addresses.
const GROUP: &str = "--as-group=system:masters";

pub(crate) async fn remapped_addresses_are_translated(cluster: &Cluster) {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    for (number, cluster, side) in [(1, "south", Side::Origin), (2, "north", Side::Donor)] {
        let record = peering(number, cluster, side);
        store.update(move |change| change.put_peering(record)).await.unwrap();
    }
    let ranges = json!({
        "south": [{ "there": "10.244.0.0/16", "here": "100.64.0.0/16" }],
        "north": [{ "there": "10.244.0.0/16", "here": "100.65.0.0/16" }],
    });
    store.keep("remapped-networks", ranges.to_string().into_bytes()).await.unwrap();
    let review = RemappedAddressesReview::new(Arc::new(RemapBook::open(store).unwrap()));
    let stop = CancellationToken::new();
    let task = tokio::spawn(served(cluster, free_port(), Box::new(review), stop.clone()));

    let namespaces = Api::<Namespace>::all(cluster.admin());
    let object = json!({ "metadata": { "name": NAMESPACE } });
    namespaces.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p", "namespace": NAMESPACE },
        "spec": { "nodeName": "south-1", "containers": [{ "name": "c", "image": "i" }] },
    });
    // The namespace's default account is made a moment later.
    eventually("the pod is accepted", || async {
        cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &pod.to_string()).await.is_ok()
    })
    .await;
    eventually("the pod is shown at its address here", || async {
        write_status(cluster, &[KUBELET, GROUP], "10.244.3.4").await == Some("100.64.3.4 100.64.3.4".to_owned())
    })
    .await;
    // Others write what they mean.
    assert_eq!(write_status(cluster, &[], "10.244.3.5").await.unwrap(), "10.244.3.5 10.244.3.5");

    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "s", "namespace": NAMESPACE,
            "labels": { "liqo.io/managed-by": "shadowendpointslice", "offloading.liqo.io/origin": "north-liqo" },
        },
        "endpoints": [{ "addresses": ["10.244.1.2"] }, { "addresses": ["10.244.1.3"] }], "ports": [],
    });
    cluster.plane().kubectl_with_input(&["apply", "-f", "-", MANAGER, GROUP], &slice.to_string()).await.unwrap();
    let shown = ["get", "endpointslices", "s", "-n", NAMESPACE, "-o", "jsonpath={.endpoints[*].addresses[*]}"];
    assert_eq!(cluster.plane().kubectl(&shown).await.unwrap(), "100.65.1.2 100.65.1.3");

    stop.cancel();
    task.await.unwrap();
    // Without the agent no address of a remapped pod is written, and those of others are.
    let webhooks = Api::<MutatingWebhookConfiguration>::all(cluster.admin());
    let nowhere = json!([{ "op": "replace", "path": "/webhooks/0/clientConfig/url", "value": "https://127.0.0.1:1" }]);
    let nowhere = Patch::<()>::Json(serde_json::from_value(nowhere).unwrap());
    webhooks.patch(REMAPPED_ADDRESSES_WEBHOOK, &PatchParams::default(), &nowhere).await.unwrap();
    eventually("the status is refused", || async {
        write_status(cluster, &[KUBELET, GROUP], "10.244.3.6").await.is_none()
    })
    .await;
    assert_eq!(write_status(cluster, &[], "10.244.3.7").await.unwrap(), "10.244.3.7 10.244.3.7");
    webhooks.delete(REMAPPED_ADDRESSES_WEBHOOK, &DeleteParams::default()).await.unwrap();
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await.unwrap();
}

/// Writes a pod's address, and returns those that it then has; `None` if the API server refuses.
async fn write_status(cluster: &Cluster, writer: &[&str], address: &str) -> Option<String> {
    let status = json!({ "status": { "podIP": address, "podIPs": [{ "ip": address }] } }).to_string();
    let patch = ["patch", "pod", "p", "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", &status];
    cluster.plane().kubectl(&[&patch[..], writer].concat()).await.ok()?;
    let shown = ["get", "pod", "p", "-n", NAMESPACE, "-o", "jsonpath={.status.podIP} {.status.podIPs[*].ip}"];
    Some(cluster.plane().kubectl(&shown).await.unwrap())
}

/// A peering with a cluster whose Liqo has its name with `-liqo`.
fn peering(number: u64, cluster: &str, side: Side) -> PeeringRecord {
    let remote = RemoteKeys {
        cluster: cluster.to_owned(),
        wireguard_public: [3; 32],
        hpke_public: HpkePublicKey::from_bytes(&[4; HpkePublicKey::BYTES]).unwrap(),
        identity_key: IdentityKey::generate(&SeededEntropy::new(1)).public(),
        institution: None,
        endpoints: Vec::new(),
        network: RemoteNetwork {
            pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
            liqo_cluster_id: format!("{cluster}-liqo"),
            ..RemoteNetwork::default()
        },
    };
    let id = PeeringId(number);
    let bundle = v1::KeyBundle { peering: id.to_string(), epoch: 1, ..v1::KeyBundle::default() };
    let record = PeeringRecord::new(id, &bundle, side, SecretKey::new([1; 32]), SecretKey::new([2; 32]));
    PeeringRecord { remote: Some(remote), ..record }
}
