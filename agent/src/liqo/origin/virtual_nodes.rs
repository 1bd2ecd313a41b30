//! A lease as a virtual node: asked for, labelled, offered to its namespace, and looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{ListParams, Patch};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::{LiqoOrigin, check, objects};
use crate::delivery::call::{call, call_opt, patching};
use crate::delivery::{DeliveryError, LEASE_LABEL, check_lease_id};
use crate::liqo::{
    LiqoPeer, dynamic, namespace_offloading, resource_slice, virtual_node,
    waiting::{Seen, Waiting},
};
use crate::observe::quantity::nano as quantity_nano;

/// How long the donor is given to grant a slice: it was seen to need 0.5 s.
const GRANT_PATIENCE: Duration = Duration::from_secs(30);
/// How long Liqo is given for a virtual node: it was seen to need 0.4 s.
const VIRTUAL_NODE_PATIENCE: Duration = Duration::from_secs(20);
/// How long the remote namespace is given: it was seen to need 0.4 s.
const OFFLOADING_PATIENCE: Duration = Duration::from_secs(20);
/// How long one look at the Node waits for it to become ready: it was seen to need 1.3 s.
const NODE_PATIENCE: Duration = Duration::from_secs(15);
/// Attempts to patch a virtual node that Liqo writes at the same time.
const PATCH_ATTEMPTS: usize = 8;
const PAGE: u32 = 500;
/// Pages of slices that are read: two million leases.
const MAX_PAGES: usize = 4_096;

/// What is asked of a donor for one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceRequest {
    /// "lease-N".
    pub lease_id: String,
    /// Kubernetes resource names and quantities, as in the lease.
    pub resources: BTreeMap<String, String>,
    /// The namespace whose pods the lease is for.
    pub target_namespace: String,
}

impl LiqoOrigin {
    /// Makes the virtual node of a lease and offers it to the lease's namespace; also amends it. Returns when the donor
    /// granted it and the remote namespace is there; whether pods can run is told by [`ready`](Self::ready).
    ///
    /// # Errors
    /// [`DeliveryError`]; permanent if the donor denies the slice, with its words.
    pub async fn accept(&self, peer: &LiqoPeer, request: &SliceRequest) -> Result<(), DeliveryError> {
        check_lease_id(&request.lease_id)?;
        check::target_namespace(&request.target_namespace)?;
        check::peer(peer, &self.own_id().await?)?;
        // A donor that is lent from again is not gone, whatever an earlier removal had to assume.
        self.unmark(&peer.liqo_id).await?;
        self.ensure_virtual_kubelet_options().await?;
        self.ensure_target_namespace(&request.target_namespace).await?;

        let id = request.lease_id.as_str();
        let tenant = peer.tenant_namespace();
        let slices = self.namespaced(&tenant, &resource_slice());
        if let Some(found) = call_opt(&format!("read ResourceSlice {id}"), slices.get(id)).await? {
            check_slice(&found, id)?;
        }
        dynamic::apply(&slices, &objects::slice(peer, id, &request.resources, &request.target_namespace)).await?;
        let operation = format!("wait for cluster {} to grant ResourceSlice {id}", peer.liqo_id);
        let waiting = Waiting { operation: &operation, hint: "", patience: GRANT_PATIENCE };
        waiting.until(&slices, id, |slice| granted(slice, &request.resources)).await?;

        // The namespace's offer does not depend on the virtual node, so it is written while Liqo makes that.
        self.offer_to_namespace(&request.target_namespace, None).await?;
        self.mark_virtual_node(&tenant, id, &request.target_namespace).await?;
        let offloadings = self.namespaced(&request.target_namespace, &namespace_offloading());
        let operation = format!("offload namespace {} to cluster {}", request.target_namespace, peer.liqo_id);
        let waiting = Waiting { operation: &operation, hint: "", patience: OFFLOADING_PATIENCE };
        let look = |offloading: Option<&DynamicObject>| Ok(remote_namespace(offloading, &peer.liqo_id));
        waiting.until(&offloadings, objects::OFFLOADING, look).await
    }

    /// Checks that the Node of a lease is Ready and has what was granted; waits for a new one.
    ///
    /// # Errors
    /// [`DeliveryError`].
    pub async fn ready(&self, lease_id: &str) -> Result<(), DeliveryError> {
        check_lease_id(lease_id)?;
        let operation = format!("use virtual node {lease_id}");
        let Some(slice) = self.slice_of(lease_id).await? else {
            return Err(DeliveryError::temporary(operation, "there is no ResourceSlice; it is made again"));
        };
        let granted = amounts(&slice.data["status"]["resources"]);
        let nodes = Api::<Node>::all(self.client.clone());
        let waiting = Waiting { operation: &operation, hint: "", patience: NODE_PATIENCE };
        waiting.until(&nodes, lease_id, |node| Ok(node_ready(node, &granted))).await
    }

    /// Ids of the leases of which something is here.
    ///
    /// # Errors
    /// [`DeliveryError`].
    pub async fn list(&self) -> Result<BTreeSet<String>, DeliveryError> {
        let mut found = self.slices(LEASE_LABEL).await?;
        // Of a lease whose slice went before the rest.
        let nodes = self.cluster_wide(&virtual_node());
        let labelled = ListParams::default().labels(LEASE_LABEL);
        found.extend(call("list the VirtualNodes of leases", nodes.list(&labelled)).await?.items);
        Ok(found.iter().filter_map(|object| object.labels().get(LEASE_LABEL).cloned()).collect())
    }

    /// Slices that match a label selector, whatever donor they are for.
    pub(super) async fn slices(&self, selector: &str) -> Result<Vec<DynamicObject>, DeliveryError> {
        let api = self.cluster_wide(&resource_slice());
        let mut page = ListParams::default().labels(selector).limit(PAGE);
        let mut slices = Vec::new();
        for _ in 0..MAX_PAGES {
            let list = call("list the ResourceSlices of leases", api.list(&page)).await?;
            // Replicas of what others ask of this cluster carry the label too.
            slices.extend(list.items.into_iter().filter(|slice| !is_replica(slice)));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        Ok(slices)
    }

    pub(super) async fn slice_of(&self, lease_id: &str) -> Result<Option<DynamicObject>, DeliveryError> {
        Ok(self.slices(&format!("{LEASE_LABEL}={lease_id}")).await?.into_iter().next())
    }

    async fn ensure_target_namespace(&self, name: &str) -> Result<(), DeliveryError> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        match call_opt(&format!("read namespace {name}"), namespaces.get(name)).await? {
            Some(found) if found.metadata.deletion_timestamp.is_none() => Ok(()),
            Some(_) => Err(DeliveryError::temporary(format!("offload namespace {name}"), "it is being deleted")),
            None => Err(DeliveryError::permanent(
                "no-target-namespace",
                format!("target_namespace {name} does not exist in this cluster; create it, and request again"),
            )),
        }
    }

    /// Adds the lease's labels and taint to the virtual node, before or after its virtual-kubelet began.
    async fn mark_virtual_node(&self, tenant: &str, id: &str, target: &str) -> Result<(), DeliveryError> {
        let nodes = self.namespaced(tenant, &virtual_node());
        let operation = format!("wait for Liqo to make VirtualNode {id}");
        let there = |node: Option<&DynamicObject>| {
            Ok(match node {
                Some(node) if node.metadata.deletion_timestamp.is_some() => {
                    Seen::NotYet("the old one is still being deleted".to_owned())
                }
                Some(node) => Seen::Done(node.clone()),
                None => Seen::NotYet("not there; is liqo-controller-manager running?".to_owned()),
            })
        };
        let waiting = Waiting { operation: &operation, hint: "", patience: VIRTUAL_NODE_PATIENCE };
        let mut node = waiting.until(&nodes, id, there).await?;
        let operation = format!("label VirtualNode {id}");
        let parameters = patching();
        for _ in 0..PATCH_ATTEMPTS {
            let Some(patch) = objects::virtual_node_patch(&node, id, target) else { return Ok(()) };
            match nodes.patch(id, &parameters, &Patch::Merge(&patch)).await {
                Ok(_) => return Ok(()),
                // Liqo was faster.
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    node = call(&operation, nodes.get(id)).await?;
                }
                Err(error) => return call(&operation, async { Err(error) }).await,
            }
        }
        Err(DeliveryError::temporary(operation, "Liqo writes it all the time"))
    }
}

/// Replicated here from a cluster that borrows from this one.
fn is_replica(slice: &DynamicObject) -> bool {
    slice.labels().get("liqo.io/replicated").is_some_and(|replicated| replicated == "true")
}

fn check_slice(found: &DynamicObject, lease_id: &str) -> Result<(), DeliveryError> {
    if found.metadata.deletion_timestamp.is_some() {
        return Err(DeliveryError::temporary(
            format!("make ResourceSlice {lease_id}"),
            "the old one is still being deleted",
        ));
    }
    if found.labels().get(LEASE_LABEL).map(String::as_str) == Some(lease_id) {
        return Ok(());
    }
    let message = format!(
        "ResourceSlice {}/{lease_id} was not made by Comity; it is left alone: delete it",
        found.namespace().unwrap_or_default()
    );
    Err(DeliveryError::permanent("slice-not-ours", message))
}

/// Whether the donor granted what was asked for.
fn granted(slice: Option<&DynamicObject>, wanted: &BTreeMap<String, String>) -> Result<Seen<()>, DeliveryError> {
    let Some(slice) = slice else { return Ok(Seen::NotYet("the ResourceSlice is not there".to_owned())) };
    let status = &slice.data["status"];
    match objects::condition(&status["conditions"], "Resources") {
        Some(("Denied", message)) => Err(DeliveryError::permanent(
            "slice-denied",
            format!("the donor denies ResourceSlice {}: {message}", slice.name_any()),
        )),
        Some(("Accepted", _)) => {
            let granted = amounts(&status["resources"]);
            let short = wanted.iter().find(|(name, amount)| {
                quantity_nano(amount).is_none_or(|amount| granted.get(*name).is_none_or(|granted| *granted < amount))
            });
            Ok(match short {
                None => Seen::Done(()),
                Some((name, amount)) => Seen::NotYet(format!("{name} {amount} is not granted yet")),
            })
        }
        _ => Ok(Seen::NotYet("the donor has not decided; is its agent running, and the line up?".to_owned())),
    }
}

/// Whether the namespace is there on this donor, whatever becomes of it on others.
fn remote_namespace(offloading: Option<&DynamicObject>, donor: &str) -> Seen<()> {
    let Some(offloading) = offloading else { return Seen::NotYet("the NamespaceOffloading is gone".to_owned()) };
    match objects::condition(&offloading.data["status"]["remoteNamespacesConditions"][donor], "Ready") {
        Some(("True", _)) => Seen::Done(()),
        Some((_, message)) => {
            Seen::NotYet(format!("{message}; with EnforceSameName the donor may have a namespace of that name"))
        }
        None => Seen::NotYet("Liqo has not begun; is liqo-controller-manager running?".to_owned()),
    }
}

/// Quantities as billionths; what is none is left out.
fn amounts(resources: &Value) -> BTreeMap<String, u128> {
    let text =
        |value: &Value| value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|number| number.to_string()));
    let entries = resources.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), quantity_nano(&text(value)?)?))).collect()
}

fn node_ready(node: Option<&Node>, granted: &BTreeMap<String, u128>) -> Seen<()> {
    let Some(node) = node else {
        return Seen::NotYet("there is no Node yet; look at the virtual-kubelet's pod".to_owned());
    };
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    if ready.is_none_or(|ready| ready.status != "True") {
        let message = ready.and_then(|ready| ready.message.as_deref()).unwrap_or("no condition Ready");
        return Seen::NotYet(format!("the Node is not ready: {message}"));
    }
    if node.labels().get(LEASE_LABEL) != node.metadata.name.as_ref() {
        return Seen::NotYet("the Node has no label of its lease yet".to_owned());
    }
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let short = granted.iter().find(|(name, amount)| {
        let there = allocatable.and_then(|amounts| quantity_nano(&amounts.get(*name)?.0));
        there.is_none_or(|there| there < **amount)
    });
    match short {
        None if granted.is_empty() => Seen::NotYet("nothing is granted".to_owned()),
        None => Seen::Done(()),
        Some((name, _)) => Seen::NotYet(format!("the Node does not show all of {name} yet")),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(status: Value) -> DynamicObject {
        DynamicObject::new("lease-7", &resource_slice()).data(json!({ "status": status }))
    }

    fn wanted() -> BTreeMap<String, String> {
        [("memory", "1024Mi"), ("nvidia.com/gpu", "2")]
            .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
            .into()
    }

    #[test]
    fn a_grant_counts_when_all_of_it_is_there() {
        let with = |status: &str, gpus: &str| {
            let conditions = json!([{ "type": "Resources", "status": status, "message": "not leased" }]);
            slice(json!({ "conditions": conditions, "resources": { "memory": "1Gi", "nvidia.com/gpu": gpus } }))
        };
        assert!(matches!(granted(Some(&with("Accepted", "2")), &wanted()).unwrap(), Seen::Done(())));
        assert!(
            matches!(granted(Some(&with("Accepted", "1")), &wanted()).unwrap(), Seen::NotYet(what) if what.contains("gpu"))
        );
        let Err(error) = granted(Some(&with("Denied", "2")), &wanted()) else { panic!("denied") };
        assert!(
            matches!(&error, DeliveryError::Permanent { code: "slice-denied", .. })
                && error.to_string().contains("not leased")
        );
        assert!(matches!(granted(Some(&slice(Value::Null)), &wanted()).unwrap(), Seen::NotYet(_)));
        assert!(matches!(granted(None, &wanted()).unwrap(), Seen::NotYet(_)));
    }

    #[test]
    fn only_this_donors_namespace_matters() {
        let object = DynamicObject::new("offloading", &namespace_offloading()).data(json!({ "status": {
            "offloadingPhase": "SomeFailed",
            "remoteNamespacesConditions": {
                "north": [{ "type": "OffloadingRequired", "status": "True" }, { "type": "Ready", "status": "True" }],
                "west": [{ "type": "Ready", "status": "False", "message": "being created" }],
            },
        } }));
        assert!(matches!(remote_namespace(Some(&object), "north"), Seen::Done(())));
        assert!(
            matches!(remote_namespace(Some(&object), "west"), Seen::NotYet(what) if what.contains("being created"))
        );
        assert!(matches!(remote_namespace(Some(&object), "east"), Seen::NotYet(_)));
    }

    #[test]
    fn a_node_is_ready_with_its_gpus_and_its_label() {
        let node = |ready: &str, gpus: &str, label: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": { "name": "lease-7", "labels": { LEASE_LABEL: label } },
                "status": { "conditions": [{ "type": "Ready", "status": ready }], "allocatable": { "nvidia.com/gpu": gpus } },
            }))
            .unwrap()
        };
        let granted = amounts(&json!({ "nvidia.com/gpu": 2 }));
        assert!(matches!(node_ready(Some(&node("True", "2", "lease-7")), &granted), Seen::Done(())));
        for (node, part) in [
            (node("Unknown", "2", "lease-7"), "not ready"),
            (node("True", "1", "lease-7"), "nvidia.com/gpu"),
            (node("True", "2", "lease-8"), "label"),
        ] {
            assert!(matches!(node_ready(Some(&node), &granted), Seen::NotYet(what) if what.contains(part)));
        }
        assert!(matches!(node_ready(Some(&node("True", "2", "lease-7")), &BTreeMap::new()), Seen::NotYet(_)));
        assert!(matches!(node_ready(None, &granted), Seen::NotYet(_)));
    }
}
