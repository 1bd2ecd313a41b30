//! The review that writes addresses of remapped pods where Liqo writes those of the other cluster.
//!
//! ```text
//! origin: virtual-kubelet ─▶ pods/status      the donor's address ─▶ this cluster's
//! donor:  Liqo's manager  ─▶ endpointslices   the origin's address ─▶ this cluster's
//! ```
//!
//! Other addresses stay, so a second review changes nothing. Its failure policy is `Fail`: an address that is not
//! translated is one of this cluster's own pods. Only what Liqo writes for other clusters depends on the agent.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use comity_agent_fabric::PodNetwork;
use comity_agent_workload::webhook::{Registration, Review};
use comity_types::Side;
use futures::future::BoxFuture;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use serde_json::{Value, json};

use crate::reconcile::parts::{RemapBook, WrittenPeer};

/// Name of the registration.
pub const REMAPPED_ADDRESSES_WEBHOOK: &str = "comity-remapped-addresses";
/// Longest wait of a writer for the agent.
const TRANSLATION_TIMEOUT_SECONDS: u32 = 5;
/// Label of the EndpointSlices that Liqo makes for an origin's.
const SLICE_MANAGER_LABEL: &str = "liqo.io/managed-by";
const SLICE_MANAGER: &str = "shadowendpointslice";
/// Label with the Liqo id of the origin.
const SLICE_ORIGIN_LABEL: &str = "offloading.liqo.io/origin";

type Peers = BTreeMap<WrittenPeer, Vec<PodNetwork>>;

/// Translates addresses of remapped peers.
pub struct RemappedAddressesReview {
    book: Arc<RemapBook>,
}

impl RemappedAddressesReview {
    /// A review for the ranges of a book.
    #[must_use]
    pub fn new(book: Arc<RemapBook>) -> Self {
        Self { book }
    }
}

impl Review for RemappedAddressesReview {
    fn registration(&self) -> Registration {
        remapped_addresses_registration()
    }

    fn registered(&self) {
        self.book.webhook_is_registered();
    }

    fn answer<'a>(&'a self, body: &'a [u8]) -> BoxFuture<'a, Result<AdmissionReview<DynamicObject>, String>> {
        let answer = answer(body, &self.book.remapped_peers());
        Box::pin(async { answer })
    }
}

/// The registration: what Liqo writes about pods of other clusters. The owner writes it, who does not know which peers
/// will be remapped.
#[must_use]
pub fn remapped_addresses_registration() -> Registration {
    let writers = format!("request.userInfo.username.startsWith('{}')", kubelets_prefix());
    let pods = json!({
        "name": "remapped-pods.comity.dev",
        "failurePolicy": "Fail",
        "timeoutSeconds": TRANSLATION_TIMEOUT_SECONDS,
        "matchConditions": [{ "name": "virtual-kubelets", "expression": writers }],
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/status"],
            "scope": "Namespaced",
        }],
    });
    let endpoints = json!({
        "name": "remapped-endpoints.comity.dev",
        "failurePolicy": "Fail",
        "timeoutSeconds": TRANSLATION_TIMEOUT_SECONDS,
        "objectSelector": {
            "matchLabels": { SLICE_MANAGER_LABEL: SLICE_MANAGER },
            "matchExpressions": [{ "key": SLICE_ORIGIN_LABEL, "operator": "Exists" }],
        },
        "rules": [{
            "apiGroups": ["discovery.k8s.io"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
            "resources": ["endpointslices"], "scope": "Namespaced",
        }],
    });
    Registration { name: REMAPPED_ADDRESSES_WEBHOOK, path: "/remapped-addresses", webhooks: vec![pods, endpoints] }
}

/// Prefix of the accounts under which virtual-kubelets of all donors run: each is in its donor's tenant namespace.
fn kubelets_prefix() -> String {
    format!("system:serviceaccount:{}", comity_agent_liqo::TENANT_NAMESPACE_PREFIX)
}

/// That of one donor.
fn kubelet_prefix(donor: &str) -> String {
    format!("{}{donor}:", kubelets_prefix())
}

fn answer(body: &[u8], peers: &Peers) -> Result<AdmissionReview<DynamicObject>, String> {
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(body).map_err(|error| format!("not a review of an object: {error}"))?;
    let request: AdmissionRequest<DynamicObject> =
        review.try_into().map_err(|_| "a review without a request".to_owned())?;
    let mut response = AdmissionResponse::from(&request);
    if let Some(object) = &request.object {
        let steps = match request.resource.resource.as_str() {
            "pods" => pod_steps(object, networks_of_writer(&request, peers)),
            _ => endpoint_steps(object, networks_of_slice(object, peers)),
        };
        if !steps.is_empty() {
            let patch = serde_json::from_value(Value::Array(steps)).map_err(|error| error.to_string())?;
            response = response.with_patch(patch).map_err(|error| error.to_string())?;
        }
    }
    Ok(response.into_review())
}

fn networks_of_writer<'a>(request: &AdmissionRequest<DynamicObject>, peers: &'a Peers) -> &'a [PodNetwork] {
    let writer = request.user_info.username.as_deref().unwrap_or_default();
    let is_of = |peer: &WrittenPeer| peer.side == Side::Origin && writer.starts_with(&kubelet_prefix(&peer.liqo_id));
    peers.iter().find(|(peer, _)| is_of(peer)).map_or(&[], |(_, networks)| networks)
}

fn networks_of_slice<'a>(slice: &DynamicObject, peers: &'a Peers) -> &'a [PodNetwork] {
    let origin = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SLICE_ORIGIN_LABEL)).cloned();
    let peer = WrittenPeer { liqo_id: origin.unwrap_or_default(), side: Side::Donor };
    peers.get(&peer).map_or(&[], Vec::as_slice)
}

fn pod_steps(pod: &DynamicObject, networks: &[PodNetwork]) -> Vec<Value> {
    let addresses = pod.data.pointer("/status/podIPs").and_then(Value::as_array);
    let several = (0..addresses.map_or(0, Vec::len)).map(|index| format!("/status/podIPs/{index}/ip"));
    let paths = std::iter::once("/status/podIP".to_owned()).chain(several);
    paths.filter_map(|path| step(pod, path, networks)).collect()
}

fn endpoint_steps(slice: &DynamicObject, networks: &[PodNetwork]) -> Vec<Value> {
    let endpoints = slice.data.get("endpoints").and_then(Value::as_array);
    let mut steps = Vec::new();
    for (index, endpoint) in endpoints.into_iter().flatten().enumerate() {
        let count = endpoint.get("addresses").and_then(Value::as_array).map_or(0, Vec::len);
        let paths = (0..count).map(|address| format!("/endpoints/{index}/addresses/{address}"));
        steps.extend(paths.filter_map(|path| step(slice, path, networks)));
    }
    steps
}

/// Replaces an address of a remapped network.
fn step(object: &DynamicObject, path: String, networks: &[PodNetwork]) -> Option<Value> {
    let address: Ipv4Addr = object.data.pointer(&path)?.as_str()?.parse().ok()?;
    let here = networks.iter().find_map(|network| network.to_here(address))?;
    Some(json!({ "op": "replace", "path": path, "value": here.to_string() }))
}

#[cfg(test)]
mod tests;
