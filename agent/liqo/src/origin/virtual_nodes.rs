//! Requests, labels, offers and checks the virtual node of a lease.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comity_agent_kubernetes::call::{Pager, call, call_opt, patching};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use comity_agent_model::lease::target_namespace::NamespaceUse;
use comity_policy::quantity::nano as quantity_nano;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{ListParams, Patch};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use super::objects::{self, SliceRequest};
use super::{LiqoOrigin, check, idle};
use crate::{
    LiqoPeer, PEERING_LABEL, dynamic, namespace_offloading, resource_slice, virtual_node,
    waiting::{Progress, Waiting},
};

/// Time limit for the donor to grant a slice; observed: 0.5 s.
const GRANT_PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for Liqo to make a virtual node; observed: 0.4 s.
const VIRTUAL_NODE_PATIENCE: Duration = Duration::from_secs(20);
/// Time limit for the remote namespace; observed: 0.4 s.
const OFFLOADING_PATIENCE: Duration = Duration::from_secs(20);
/// How long one check of the Node waits until it is ready; observed: 1.3 s.
const NODE_PATIENCE: Duration = Duration::from_secs(15);
/// Attempts to patch a virtual node that Liqo writes at the same time.
const PATCH_ATTEMPTS: usize = 8;

impl LiqoOrigin {
    /// Creates or updates the virtual node of a lease and offers it to the lease's namespace. Returns when the donor
    /// granted it and the remote namespace exists; [`ready`](Self::ready) tells whether pods can run.
    ///
    /// # Errors
    /// [`DeliveryError`]; permanent if the donor denies the slice, with its message.
    pub async fn accept(&self, peer: &LiqoPeer, request: &SliceRequest) -> Result<(), DeliveryError> {
        let slice = LeaseId::parse(&request.slice, "slice");
        slice.map_err(|error| DeliveryError::permanent("bad-lease-id", error.to_string()))?;
        check::target_namespace(&request.target_namespace)?;
        check::peer(peer, self.own_id().await?)?;
        let name = request.slice.as_str();
        let tenant = peer.tenant_namespace();
        let slices = self.namespaced(&tenant, &resource_slice());
        let operation = format!("read ResourceSlice {name}");
        let (found, (), (), namespace) = tokio::try_join!(
            call_opt(&operation, slices.get(name)),
            // A donor that lends again is not gone, even if an earlier removal marked it so.
            self.unmark(&peer.liqo_id),
            self.ensure_virtual_kubelet_options(),
            self.target_namespace(&request.target_namespace),
        )?;
        // Who withdraws the opt-in keeps the leases that the namespace has.
        if !found.as_ref().is_some_and(|found| is_offered(found, request)) {
            let (name, tenant) = (&request.target_namespace, &request.tenant);
            let usage = NamespaceUse { namespace: name, tenant, default_tenant: &self.settings.default_tenant };
            usage.check_offloading(namespace.labels())?;
        }
        match &found {
            Some(found) => check_slice(found, peer, request.lease_id)?,
            None => check_new(request)?,
        }
        dynamic::apply(&slices, &objects::slice(peer, request)).await?;
        self.publish_node_namespaces().await?;
        // While a slice is idle, the donor denies it.
        let denial = if is_own(request) { Denial::Final } else { Denial::MayBeOld };
        let operation = format!("wait for cluster {} to grant ResourceSlice {name}", peer.liqo_id);
        let waiting = Waiting { operation: &operation, hint: "", patience: GRANT_PATIENCE };
        // The namespace's offer depends on the slice alone, so it is written while the donor grants that.
        tokio::try_join!(
            waiting.until(&slices, name, |slice| granted(slice, &request.resources, denial)),
            self.offer_to_namespace(&request.target_namespace, &request.tenant),
        )?;
        let before = found.as_ref().and_then(|found| found.annotations().get(objects::TARGET_LABEL));
        if let Some(before) = before.filter(|before| **before != request.target_namespace) {
            self.begin_to_withdraw_offer(before).await?;
        }
        self.mark_virtual_node(&tenant, request).await?;
        let offloadings = self.namespaced(&request.target_namespace, &namespace_offloading());
        let operation = format!("offload namespace {} to cluster {}", request.target_namespace, peer.liqo_id);
        let waiting = Waiting { operation: &operation, hint: "", patience: OFFLOADING_PATIENCE };
        let check = |offloading: Option<&DynamicObject>| Ok(remote_namespace(offloading, &peer.liqo_id));
        waiting.until(&offloadings, objects::OFFLOADING, check).await
    }

    /// Checks that the Node of a lease is Ready and has what was granted; waits for a new one.
    ///
    /// # Errors
    /// [`DeliveryError`].
    pub async fn ready(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        let operation = format!("use virtual node {lease_id}");
        let Some(slice) = self.slice_of(lease_id).await? else {
            return Err(DeliveryError::temporary(operation, "there is no ResourceSlice; it is made again"));
        };
        let granted = amounts(&slice.data["status"]["resources"]);
        let nodes = Api::<Node>::all(self.client.clone());
        let waiting = Waiting { operation: &operation, hint: "", patience: NODE_PATIENCE };
        // The slice, the virtual node and the Node have one name.
        waiting.until(&nodes, &slice.name_any(), |node| Ok(node_ready(node, lease_id, &granted))).await
    }

    /// Ids of all leases that have objects here.
    ///
    /// # Errors
    /// [`DeliveryError`].
    pub async fn list(&self) -> Result<BTreeSet<LeaseId>, DeliveryError> {
        let mut found = self.slices(LEASE_LABEL).await?;
        // Leases whose slice was removed before the other objects.
        let nodes = self.cluster_wide(&virtual_node());
        let labelled = ListParams::default().labels(LEASE_LABEL);
        found.extend(call("list the VirtualNodes of leases", nodes.list(&labelled)).await?.items);
        Ok(found.iter().filter_map(|object| object.labels().get(LEASE_LABEL)?.parse().ok()).collect())
    }

    /// Slices that match a label selector, whatever donor they are for.
    pub(super) async fn slices(&self, selector: &str) -> Result<Vec<DynamicObject>, DeliveryError> {
        let api = self.cluster_wide(&resource_slice());
        let mut pager = Pager::new(ListParams::default().labels(selector));
        let mut slices = Vec::new();
        while let Some(page) = pager.page() {
            let list = call("list the ResourceSlices of leases", api.list(page)).await?;
            pager.turn(&list.metadata);
            // Replicas of slices that others request from this cluster have the label too.
            slices.extend(list.items.into_iter().filter(|slice| !is_replica(slice)));
        }
        Ok(slices)
    }

    pub(super) async fn slice_of(&self, lease_id: LeaseId) -> Result<Option<DynamicObject>, DeliveryError> {
        Ok(self.slices(&format!("{LEASE_LABEL}={lease_id}")).await?.into_iter().next())
    }

    async fn target_namespace(&self, name: &str) -> Result<Namespace, DeliveryError> {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        match call_opt(&format!("read namespace {name}"), namespaces.get(name)).await? {
            Some(found) if found.metadata.deletion_timestamp.is_none() => Ok(found),
            Some(_) => Err(DeliveryError::temporary(format!("offload namespace {name}"), "it is being deleted")),
            None => Err(DeliveryError::permanent(
                "no-target-namespace",
                format!("target_namespace {name} does not exist in this cluster; create it, and request again"),
            )),
        }
    }

    /// Adds the lease's labels and taint to the virtual node, before or after its virtual-kubelet started.
    async fn mark_virtual_node(&self, tenant: &str, request: &SliceRequest) -> Result<(), DeliveryError> {
        let nodes = self.namespaced(tenant, &virtual_node());
        let (name, lease, target) = (&request.slice, request.lease_id.to_string(), &request.target_namespace);
        let operation = format!("wait for Liqo to make VirtualNode {name}");
        let there = |node: Option<&DynamicObject>| {
            Ok(match node {
                Some(node) if node.metadata.deletion_timestamp.is_some() => {
                    Progress::NotYet("the old one is still being deleted".to_owned())
                }
                Some(node) => Progress::Done(node.clone()),
                None => Progress::NotYet("not there; is liqo-controller-manager running?".to_owned()),
            })
        };
        let waiting = Waiting { operation: &operation, hint: "", patience: VIRTUAL_NODE_PATIENCE };
        let mut node = waiting.until(&nodes, name, there).await?;
        let operation = format!("label VirtualNode {name}");
        let parameters = patching();
        for _ in 0..PATCH_ATTEMPTS {
            let Some(patch) = objects::virtual_node_patch(&node, &lease, target) else { return Ok(()) };
            match nodes.patch(name, &parameters, &Patch::Merge(&patch)).await {
                Ok(_) => return Ok(()),
                // Liqo changed it in the meantime.
                Err(kube::Error::Api(status)) if status.is_conflict() => {
                    node = call(&operation, nodes.get(name)).await?;
                }
                Err(error) => return call(&operation, async { Err(error) }).await,
            }
        }
        Err(DeliveryError::temporary(operation, "Liqo keeps changing it"))
    }
}

/// Whether it was replicated from a cluster that borrows from this one.
fn is_replica(slice: &DynamicObject) -> bool {
    slice.labels().get("liqo.io/replicated").is_some_and(|replicated| replicated == "true")
}

/// Whether a slice is this lease's already, for the same namespace.
fn is_offered(slice: &DynamicObject, request: &SliceRequest) -> bool {
    let has = |found: Option<&String>, wanted: &str| found.is_some_and(|found| found == wanted);
    has(slice.labels().get(LEASE_LABEL), &request.lease_id.to_string())
        && has(slice.annotations().get(objects::TARGET_LABEL), &request.target_namespace)
}

/// Whether the slice has the lease's name, and not that of an earlier one.
fn is_own(request: &SliceRequest) -> bool {
    request.slice == request.lease_id.to_string()
}

/// The donor could choose the name of another donor's node: a name other than the lease's must be that of a slice which
/// this cluster made for the peering before.
fn check_new(request: &SliceRequest) -> Result<(), DeliveryError> {
    if is_own(request) {
        return Ok(());
    }
    let message = format!(
        "the donor offers {} the slice {:?}, which this cluster does not have; request again",
        request.lease_id, request.slice
    );
    Err(DeliveryError::permanent("slice-gone", message))
}

fn check_slice(found: &DynamicObject, peer: &LiqoPeer, lease_id: LeaseId) -> Result<(), DeliveryError> {
    let name = found.name_any();
    let temporary = |reason: &str| Err(DeliveryError::temporary(format!("make ResourceSlice {name}"), reason));
    if found.metadata.deletion_timestamp.is_some() {
        return temporary("the old one is still being deleted");
    }
    match found.labels().get(LEASE_LABEL) {
        Some(lease) if *lease == lease_id.to_string() => return Ok(()),
        Some(other) if found.labels().contains_key(PEERING_LABEL) => {
            return temporary(&format!("it still belongs to {other}"));
        }
        None if idle::is_idle(found, &peer.peering) => return Ok(()),
        _ => {}
    }
    let message = format!(
        "ResourceSlice {}/{name} was not made by Comity; it is left alone: delete it",
        found.namespace().unwrap_or_default()
    );
    Err(DeliveryError::permanent("slice-not-ours", message))
}

/// Meaning of a denied slice.
#[derive(Clone, Copy)]
enum Denial {
    /// The donor denies this lease.
    Final,
    /// The slice was idle: between two leases the donor denies it.
    MayBeOld,
}

/// Whether the donor granted exactly what was asked for.
fn granted(
    slice: Option<&DynamicObject>,
    wanted: &BTreeMap<String, String>,
    denial: Denial,
) -> Result<Progress<()>, DeliveryError> {
    let Some(slice) = slice else { return Ok(Progress::NotYet("the ResourceSlice is not there".to_owned())) };
    let status = &slice.data["status"];
    match objects::condition(&status["conditions"], "Resources") {
        Some(("Denied", message)) => match denial {
            Denial::MayBeOld => Ok(Progress::NotYet(format!("the donor denies it: {message}"))),
            Denial::Final => Err(DeliveryError::permanent(
                "slice-denied",
                format!("the donor denies ResourceSlice {}: {message}", slice.name_any()),
            )),
        },
        Some(("Accepted", _)) => {
            let granted = amounts(&status["resources"]);
            let short = wanted
                .iter()
                .find(|(name, amount)| quantity_nano(amount).is_none_or(|amount| granted.get(*name) != Some(&amount)));
            Ok(match short {
                None => Progress::Done(()),
                Some((name, amount)) => Progress::NotYet(format!("{name} {amount} is not granted yet")),
            })
        }
        _ => Ok(Progress::NotYet("the donor has not decided; is its agent running, and the line up?".to_owned())),
    }
}

/// Whether the remote namespace exists on this donor; other donors do not matter.
fn remote_namespace(offloading: Option<&DynamicObject>, donor: &str) -> Progress<()> {
    let Some(offloading) = offloading else { return Progress::NotYet("the NamespaceOffloading is gone".to_owned()) };
    match objects::condition(&offloading.data["status"]["remoteNamespacesConditions"][donor], "Ready") {
        Some(("True", _)) => Progress::Done(()),
        Some((_, message)) => {
            Progress::NotYet(format!("{message}; with EnforceSameName the donor may have a namespace of that name"))
        }
        None => Progress::NotYet("Liqo has not begun; is liqo-controller-manager running?".to_owned()),
    }
}

/// Quantities in billionths; zeros and unreadable ones are left out.
fn amounts(resources: &Value) -> BTreeMap<String, u128> {
    let text =
        |value: &Value| value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|number| number.to_string()));
    let entries = resources.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), quantity_nano(&text(value)?)?))).collect()
}

fn node_ready(node: Option<&Node>, lease_id: LeaseId, granted: &BTreeMap<String, u128>) -> Progress<()> {
    let Some(node) = node else {
        return Progress::NotYet("there is no Node yet; check the virtual-kubelet's pod".to_owned());
    };
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    if ready.is_none_or(|ready| ready.status != "True") {
        let message = ready.and_then(|ready| ready.message.as_deref()).unwrap_or("no condition Ready");
        return Progress::NotYet(format!("the Node is not ready: {message}"));
    }
    if node.labels().get(LEASE_LABEL).is_none_or(|lease| *lease != lease_id.to_string()) {
        return Progress::NotYet("the Node has no label of its lease yet".to_owned());
    }
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let short = granted.iter().find(|(name, amount)| {
        let there = allocatable.and_then(|amounts| quantity_nano(&amounts.get(*name)?.0));
        // A larger amount is that of an earlier lease.
        there != Some(**amount)
    });
    match short {
        None if granted.is_empty() => Progress::NotYet("nothing is granted".to_owned()),
        None => Progress::Done(()),
        Some((name, _)) => Progress::NotYet(format!("the Node does not show the granted {name} yet")),
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
    fn a_grant_counts_only_if_it_is_exact() {
        let with = |status: &str, gpus: &str| {
            let conditions = json!([{ "type": "Resources", "status": status, "message": "not leased" }]);
            slice(json!({ "conditions": conditions, "resources": { "memory": "1Gi", "nvidia.com/gpu": gpus } }))
        };
        assert!(matches!(granted(Some(&with("Accepted", "2")), &wanted(), Denial::Final).unwrap(), Progress::Done(())));
        assert!(
            matches!(granted(Some(&with("Accepted", "1")), &wanted(), Denial::Final).unwrap(), Progress::NotYet(what) if what.contains("gpu"))
        );
        let more = granted(Some(&with("Accepted", "4")), &wanted(), Denial::MayBeOld).unwrap();
        assert!(matches!(more, Progress::NotYet(_)), "that is what an earlier lease had");
        let denied = granted(Some(&with("Denied", "2")), &wanted(), Denial::MayBeOld).unwrap();
        assert!(matches!(denied, Progress::NotYet(what) if what.contains("not leased")), "it may be old");
        let Err(error) = granted(Some(&with("Denied", "2")), &wanted(), Denial::Final) else { panic!("denied") };
        assert!(
            matches!(&error, DeliveryError::Permanent { code: "slice-denied", .. })
                && error.to_string().contains("not leased")
        );
        assert!(matches!(granted(Some(&slice(Value::Null)), &wanted(), Denial::Final).unwrap(), Progress::NotYet(_)));
        assert!(matches!(granted(None, &wanted(), Denial::Final).unwrap(), Progress::NotYet(_)));
    }

    #[test]
    fn a_slice_is_taken_over_only_when_it_is_idle_and_of_this_peering() {
        let peer = LiqoPeer { peering: "peer-1".into(), cluster: "north".into(), liqo_id: "donor".into() };
        let labelled = |labels: &[(&str, &str)]| {
            let mut slice = slice(Value::Null);
            let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            slice.metadata.labels = Some(labels.iter().map(text).collect());
            slice
        };
        let ours = (PEERING_LABEL, "peer-1");
        for (labels, code) in [
            (&[ours, (LEASE_LABEL, "lease-9")][..], None),
            (&[ours], None),
            (&[ours, (LEASE_LABEL, "lease-8")], Some("temporary")),
            (&[(PEERING_LABEL, "peer-2")], Some("slice-not-ours")),
            (&[], Some("slice-not-ours")),
        ] {
            let found = match check_slice(&labelled(labels), &peer, LeaseId(9)) {
                Ok(()) => None,
                Err(DeliveryError::Permanent { code, .. }) => Some(code),
                Err(_) => Some("temporary"),
            };
            assert_eq!(found, code, "{labels:?}");
        }
    }

    #[test]
    fn a_donor_cannot_choose_the_name_of_a_new_node() {
        let with = |slice: &str| SliceRequest {
            lease_id: LeaseId(9),
            slice: slice.into(),
            resources: wanted(),
            target_namespace: "team-a".into(),
            tenant: "vision".into(),
        };
        assert!(check_new(&with("lease-9")).is_ok());
        let refused = check_new(&with("lease-8"));
        assert!(matches!(refused, Err(DeliveryError::Permanent { code: "slice-gone", .. })), "{refused:?}");
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
        assert!(matches!(remote_namespace(Some(&object), "north"), Progress::Done(())));
        assert!(
            matches!(remote_namespace(Some(&object), "west"), Progress::NotYet(what) if what.contains("being created"))
        );
        assert!(matches!(remote_namespace(Some(&object), "east"), Progress::NotYet(_)));
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
        assert!(matches!(node_ready(Some(&node("True", "2", "lease-7")), LeaseId(7), &granted), Progress::Done(())));
        for (node, part) in [
            (node("Unknown", "2", "lease-7"), "not ready"),
            (node("True", "1", "lease-7"), "nvidia.com/gpu"),
            (node("True", "4", "lease-7"), "nvidia.com/gpu"),
            (node("True", "2", "lease-8"), "label"),
        ] {
            assert!(
                matches!(node_ready(Some(&node), LeaseId(7), &granted), Progress::NotYet(what) if what.contains(part))
            );
        }
        assert!(matches!(
            node_ready(Some(&node("True", "2", "lease-7")), LeaseId(7), &BTreeMap::new()),
            Progress::NotYet(_)
        ));
        assert!(matches!(node_ready(None, LeaseId(7), &granted), Progress::NotYet(_)));
    }
}
