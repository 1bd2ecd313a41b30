//! The nodes on which a lease's pods may run. Maps the broker's salted hashes back to node names.
//!
//! Pods of a virtual node select a single node by its host name, and several by the lease's own label. Pods in a
//! lease's namespace request one unit of the lease's own extended resource in each container: the namespace's
//! LimitRange adds it, and refuses any other amount. Only the lease's nodes have that resource, so the scheduler knows
//! no other node for these pods. Label and resource have one name, are set on exactly these nodes, and are removed with
//! the lease.
//!
//! If the lease has several nodes, a second resource counts its GPUs on each, for both deliveries. Its pods request as
//! much of it as of the GPUs: the agent's webhook adds it, an admission policy checks it, and no node runs more of the
//! GPUs than were placed there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use comity_agent_kubernetes::call::{Pager, call, call_opt, patching};
use comity_agent_kubernetes::dynamic_resources::GpuClass;
use comity_agent_kubernetes::gpu_resource::{LEASE_GPUS_PREFIX, LEASE_PLACES, LEASE_RESOURCE_PREFIX};
use comity_agent_kubernetes::pod_request::amounts;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::node_id::NodeSalt;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{ListParams, Patch};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};

use crate::DonorLease;
use crate::lease_sharing::{LeaseSharing, NodeMarks, lease_sharing};

/// Label that every node has, and that selects it.
const HOST_NAME: &str = "kubernetes.io/hostname";
/// Labels that describe the GPUs: pods of the origin may select by them.
const SHOWN_LABELS: [&str; 6] = [
    "nvidia.com/gpu.product",
    "nvidia.com/gpu.memory",
    "nvidia.com/gpu.family",
    "nvidia.com/gpu.compute.major",
    "nvidia.com/gpu.compute.minor",
    "nvidia.com/cuda.driver-version.full",
];

type Labels = BTreeMap<String, String>;

/// How a lease's nodes are selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// Labels that select the nodes.
    pub(super) selector: Labels,
    /// GPU labels that all of them share.
    pub(super) shown: Labels,
    /// Nodes that need the lease's label.
    pub(super) to_label: Vec<String>,
}

/// Name of the label on a lease's nodes, and of the extended resource that its pods request.
pub(super) fn lease_resource(lease_id: LeaseId) -> String {
    format!("{LEASE_RESOURCE_PREFIX}{lease_id}")
}

/// Name of the extended resource that counts a lease's GPUs on each of its nodes.
pub(super) fn lease_gpus(lease_id: LeaseId) -> String {
    format!("{LEASE_GPUS_PREFIX}{lease_id}")
}

/// Whether the GPUs of a lease by namespace are counted by node.
///
/// Claims name devices, and thus nodes.
pub(super) fn is_counted_by_node(lease: &DonorLease) -> bool {
    lease.placement.nodes.len() > 1 && GpuClass::of_quota_name(&lease.placement.resource_name).is_none()
}

fn lease_of_resource(name: &str) -> Option<LeaseId> {
    [LEASE_RESOURCE_PREFIX, LEASE_GPUS_PREFIX].iter().find_map(|prefix| name.strip_prefix(prefix)?.parse().ok())
}

/// Amounts by resource for each node of a lease, by the node's id.
type MarksByNode<'a> = BTreeMap<&'a str, BTreeMap<String, u64>>;

/// The resources of a lease by namespace.
fn marks(lease: &DonorLease) -> MarksByNode<'_> {
    let mut marks = if is_counted_by_node(lease) { gpu_counts(lease) } else { BTreeMap::new() };
    for node in &lease.placement.nodes {
        marks.entry(node.node.as_str()).or_default().insert(lease_resource(lease.lease_id), LEASE_PLACES);
    }
    marks
}

/// The GPUs of a lease on each of its nodes.
fn gpu_counts(lease: &DonorLease) -> MarksByNode<'_> {
    let count = |gpus| BTreeMap::from([(lease_gpus(lease.lease_id), gpus)]);
    lease.placement.units_by_node().into_iter().map(|(node, gpus)| (node.node.as_str(), count(gpus))).collect()
}

/// The changes of a node's capacity that leave it with exactly these resources of the lease.
fn changes(
    lease_id: LeaseId,
    capacity: &BTreeMap<String, Quantity>,
    wanted: Option<&BTreeMap<String, u64>>,
) -> BTreeMap<String, Option<u64>> {
    // API servers write 10000 as "10k".
    let capacity = amounts(capacity);
    let of = |name: String| {
        let wanted = wanted.and_then(|wanted| wanted.get(&name)).copied();
        (capacity.get(&name).copied() != wanted).then_some((name, wanted))
    };
    [lease_resource(lease_id), lease_gpus(lease_id)].into_iter().filter_map(of).collect()
}

/// Names of the nodes of a placement.
///
/// # Errors
/// [`DeliveryError::Permanent`] if any is missing: another node never replaces it.
fn placed<'a>(
    lease: &DonorLease,
    names: impl Iterator<Item = &'a String>,
    salt: &NodeSalt,
) -> Result<BTreeSet<String>, DeliveryError> {
    let wanted: BTreeSet<&str> = lease.placement.nodes.iter().map(|node| node.node.as_str()).collect();
    let placed: BTreeSet<String> = names.filter(|name| wanted.contains(salt.node_id(name).as_str())).cloned().collect();
    if wanted.is_empty() || placed.len() != wanted.len() {
        let message = format!(
            "{} of the {} nodes that {} was placed on are in this cluster; the others were removed",
            placed.len(),
            wanted.len(),
            lease.lease_id
        );
        return Err(DeliveryError::permanent("nodes-gone", message));
    }
    Ok(placed)
}

/// Chooses the labels. `nodes` are all of the cluster, by name.
fn select(lease: &DonorLease, nodes: &BTreeMap<String, Labels>, salt: &NodeSalt) -> Result<Selection, DeliveryError> {
    let names = placed(lease, nodes.keys(), salt)?;
    let chosen: Vec<(&String, &Labels)> = nodes.iter().filter(|(name, _)| names.contains(*name)).collect();
    let (_, first) = chosen[0];
    let agreed = |label: &&str| chosen.iter().all(|(_, labels)| labels.get(*label) == first.get(*label));
    let shown = SHOWN_LABELS.iter().filter(|label| agreed(label));
    let shown = shown.filter_map(|label| Some(((*label).to_owned(), first.get(*label)?.clone()))).collect();
    if let (1, Some(host)) = (chosen.len(), first.get(HOST_NAME)) {
        // If another node carries the same label by mistake, the host name is not unique.
        if nodes.values().filter(|labels| labels.get(HOST_NAME) == Some(host)).count() == 1 {
            let selector = Labels::from([(HOST_NAME.to_owned(), host.clone())]);
            return Ok(Selection { selector, shown, to_label: Vec::new() });
        }
    }
    let selector = Labels::from([(lease_resource(lease.lease_id), "true".to_owned())]);
    Ok(Selection { selector, shown, to_label: chosen.into_iter().map(|(name, _)| name.clone()).collect() })
}

/// Nodes of one cluster.
#[derive(Clone)]
pub(super) struct LeaseNodes {
    client: Client,
    salt: NodeSalt,
}

/// Without the salt, which hides node names from brokers.
impl fmt::Debug for LeaseNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseNodes").finish_non_exhaustive()
    }
}

impl LeaseNodes {
    pub(super) const fn new(client: Client, salt: NodeSalt) -> Self {
        Self { client, salt }
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Selects a lease's nodes, labels them if needed, and removes the label from all others.
    pub(super) async fn select(&self, lease: &DonorLease) -> Result<Selection, DeliveryError> {
        let nodes: BTreeMap<String, Labels> = self
            .list(&ListParams::default())
            .await?
            .into_iter()
            .map(|node| (node.name_any(), node.metadata.labels.unwrap_or_default()))
            .collect();
        let selection = select(lease, &nodes, &self.salt)?;
        let label = lease_resource(lease.lease_id);
        for (name, labels) in &nodes {
            let wanted = selection.to_label.contains(name);
            let current = labels.get(&label).map(String::as_str);
            if wanted && current != Some("true") {
                self.set(name, &label, Some("true")).await?;
            } else if !wanted && current.is_some() {
                self.set(name, &label, None).await?;
            }
        }
        Ok(selection)
    }

    /// How the lease's devices are shared.
    pub(super) async fn sharing(&self, lease: &DonorLease) -> Result<LeaseSharing, DeliveryError> {
        let marks = |node: PartialObjectMeta<Node>| {
            let id = self.salt.node_id(&node.name_any());
            let annotations = node.metadata.annotations.unwrap_or_default();
            (id, NodeMarks { labels: node.metadata.labels.unwrap_or_default(), annotations })
        };
        let placed = |id: &str| lease.placement.nodes.iter().any(|placed| placed.node == id);
        let nodes = self.list(&ListParams::default()).await?.into_iter().map(marks);
        lease_sharing(lease, &nodes.filter(|(id, _)| placed(id)).collect())
    }

    /// Removes the label and the resources of a lease from every node.
    pub(super) async fn release(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        let label = lease_resource(lease_id);
        for node in self.list(&ListParams::default().labels(&label)).await? {
            self.set(&node.name_any(), &label, None).await?;
        }
        self.close_to(lease_id).await
    }

    /// Leases whose label or resource any node has.
    pub(super) async fn leases(&self) -> Result<BTreeSet<LeaseId>, DeliveryError> {
        let nodes = self.list(&ListParams::default()).await?;
        let labels = nodes.iter().flat_map(|node| node.labels().keys());
        let labelled: BTreeSet<LeaseId> = labels.filter_map(|label| lease_of_resource(label)).collect();
        Ok(&labelled | &self.leases_with_resource().await?)
    }

    /// Counts the lease's GPUs on each of its nodes that are there, and nothing else of the lease on any node.
    pub(super) async fn count(&self, lease: &DonorLease) -> Result<(), DeliveryError> {
        self.set_marks(lease.lease_id, &self.capacities().await?, &gpu_counts(lease)).await
    }

    /// Gives the lease's resources to its nodes, and removes them from all others.
    pub(super) async fn open_to(&self, lease: &DonorLease) -> Result<(), DeliveryError> {
        let capacities = self.capacities().await?;
        placed(lease, capacities.keys(), &self.salt)?;
        self.set_marks(lease.lease_id, &capacities, &marks(lease)).await
    }

    /// Gives the lease's resources to those of its nodes that are there.
    pub(super) async fn reopen(&self, lease: &DonorLease) -> Result<(), DeliveryError> {
        self.set_marks(lease.lease_id, &self.capacities().await?, &marks(lease)).await
    }

    /// Removes a lease's resources from every node.
    pub(super) async fn close_to(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        self.set_marks(lease_id, &self.capacities().await?, &BTreeMap::new()).await
    }

    async fn set_marks(
        &self,
        lease_id: LeaseId,
        capacities: &BTreeMap<String, BTreeMap<String, Quantity>>,
        marks: &MarksByNode<'_>,
    ) -> Result<(), DeliveryError> {
        for (name, capacity) in capacities {
            let changes = changes(lease_id, capacity, marks.get(self.salt.node_id(name).as_str()));
            if !changes.is_empty() {
                self.set_capacity(name, &changes).await?;
            }
        }
        Ok(())
    }

    /// Labels those of the lease's nodes that are there.
    pub(super) async fn relabel(&self, lease: &DonorLease) -> Result<(), DeliveryError> {
        let label = lease_resource(lease.lease_id);
        let nodes = self.list(&ListParams::default().labels(&format!("!{label}"))).await?;
        let wanted: BTreeSet<&str> = lease.placement.nodes.iter().map(|node| node.node.as_str()).collect();
        for name in nodes.iter().map(kube::ResourceExt::name_any) {
            if wanted.contains(self.salt.node_id(&name).as_str()) {
                self.set(&name, &label, Some("true")).await?;
            }
        }
        Ok(())
    }

    /// Leases whose resource any node has.
    pub(super) async fn leases_with_resource(&self) -> Result<BTreeSet<LeaseId>, DeliveryError> {
        let capacities = self.capacities().await?;
        Ok(capacities.values().flat_map(BTreeMap::keys).filter_map(|name| lease_of_resource(name)).collect())
    }

    /// The capacity of every node, by its name.
    async fn capacities(&self) -> Result<BTreeMap<String, BTreeMap<String, Quantity>>, DeliveryError> {
        let nodes = self.nodes();
        let mut pager = Pager::new(ListParams::default());
        let mut found = BTreeMap::new();
        while let Some(page) = pager.page() {
            let list = call("list nodes", nodes.list(page)).await?;
            pager.turn(&list.metadata);
            found.extend(
                list.items
                    .into_iter()
                    .map(|node| (node.name_any(), node.status.and_then(|status| status.capacity).unwrap_or_default())),
            );
        }
        Ok(found)
    }

    /// Kubelets copy the capacity of resources that they do not know to `allocatable` within ten seconds. Source:
    /// kubernetes.io, "Advertise Extended Resources for a Node".
    async fn set_capacity(&self, node: &str, changes: &BTreeMap<String, Option<u64>>) -> Result<(), DeliveryError> {
        let amounts: BTreeMap<&String, Option<String>> =
            changes.iter().map(|(name, amount)| (name, amount.map(|amount| amount.to_string()))).collect();
        let patch = Patch::Merge(serde_json::json!({ "status": { "capacity": amounts, "allocatable": amounts } }));
        let (nodes, parameters) = (self.nodes(), patching());
        // A deleted node has no resource.
        call_opt(&format!("set the resources of a lease on node {node}"), nodes.patch_status(node, &parameters, &patch))
            .await
            .map(drop)
    }

    async fn set(&self, node: &str, label: &str, value: Option<&str>) -> Result<(), DeliveryError> {
        let patch = serde_json::json!({ "metadata": { "labels": { label: value } } });
        let parameters = patching();
        let nodes = self.nodes();
        // A deleted node needs no label.
        call_opt(&format!("label node {node}"), nodes.patch_metadata(node, &parameters, &Patch::Merge(&patch)))
            .await
            .map(drop)
    }

    async fn list(&self, wanted: &ListParams) -> Result<Vec<PartialObjectMeta<Node>>, DeliveryError> {
        let nodes = self.nodes();
        let mut pager = Pager::new(wanted.clone());
        let mut found = Vec::new();
        while let Some(page) = pager.page() {
            let list = call("list nodes", nodes.list_metadata(page)).await?;
            pager.turn(&list.metadata);
            found.extend(list.items);
        }
        Ok(found)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_model::gpu_demand::GpuDemand;
    use comity_agent_model::lease::placement::{DeviceShare, NodePlacement, Placement};

    use super::*;

    const SALT: NodeSalt = NodeSalt::new([7; 32]);

    fn lease(nodes: &[&str]) -> DonorLease {
        let nodes =
            nodes.iter().map(|name| NodePlacement { node: SALT.node_id(name), ..NodePlacement::default() }).collect();
        DonorLease {
            lease_id: LeaseId(7),
            tenant: "t".into(),
            origin: "o".into(),
            target_namespace: String::new(),
            placement: Placement { nodes, ..Placement::new("here".parse().unwrap()) },
            gpus: GpuDemand::default(),
            fencing_token: 1,
            ends_at_ms: 0,
        }
    }

    fn cluster() -> BTreeMap<String, Labels> {
        let node = |host: &str, product: &str| {
            Labels::from([(HOST_NAME.to_owned(), host.to_owned()), (SHOWN_LABELS[0].to_owned(), product.to_owned())])
        };
        BTreeMap::from([
            ("a".to_owned(), node("host-a", "H100")),
            ("b".to_owned(), node("host-b", "H100")),
            ("c".to_owned(), node("host-c", "L40S")),
            ("twin".to_owned(), node("host-c", "L40S")),
        ])
    }

    fn texts(labels: &Labels) -> Vec<(&str, &str)> {
        labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    #[test]
    fn one_node_is_selected_by_its_host_name() {
        let selection = select(&lease(&["a"]), &cluster(), &SALT).unwrap();
        assert_eq!(texts(&selection.selector), [(HOST_NAME, "host-a")]);
        assert_eq!(texts(&selection.shown), [(SHOWN_LABELS[0], "H100")]);
        assert!(selection.to_label.is_empty());
    }

    #[test]
    fn several_nodes_and_an_ambiguous_one_get_the_leases_label() {
        for (nodes, shown) in [(&["a", "b"][..], 1), (&["a", "c"], 0), (&["c"], 1)] {
            let selection = select(&lease(nodes), &cluster(), &SALT).unwrap();
            assert_eq!(texts(&selection.selector), [("lease.comity.dev/lease-7", "true")]);
            assert_eq!(selection.to_label, nodes);
            assert_eq!(selection.shown.len(), shown);
        }
    }

    #[test]
    fn gpus_are_counted_by_node_only_on_several() {
        let one = lease(&["a"]);
        let places = BTreeMap::from([("lease.comity.dev/lease-7".to_owned(), 10_000)]);
        assert_eq!(marks(&one), BTreeMap::from([(SALT.node_id("a").as_str(), places)]));
        let mut two = lease(&["a", "b"]);
        two.placement.resource_count = 3;
        for (node, devices) in two.placement.nodes.iter_mut().zip([2, 1]) {
            node.devices =
                (0..devices).map(|device| DeviceShare { device, milli: 1_000, ..DeviceShare::default() }).collect();
        }
        let gpus = |name: &str| marks(&two)[SALT.node_id(name).as_str()]["gpus.lease.comity.dev/lease-7"];
        assert_eq!((gpus("a"), gpus("b")), (2, 1));
    }

    #[test]
    fn only_differences_from_the_wanted_amounts_are_written() {
        let [places, gpus] = [lease_resource(LeaseId(7)), lease_gpus(LeaseId(7))];
        let amounts = |amounts: &[(&String, u64)]| -> BTreeMap<String, u64> {
            amounts.iter().map(|(name, amount)| ((*name).clone(), *amount)).collect()
        };
        let wanted = amounts(&[(&places, 10_000), (&gpus, 2)]);
        let capacity = |amounts: &[(&String, &str)]| -> BTreeMap<String, Quantity> {
            amounts.iter().map(|(name, amount)| ((*name).clone(), Quantity((*amount).to_owned()))).collect()
        };
        let other = "lease.comity.dev/lease-70".to_owned();
        let whole = capacity(&[(&places, "10k"), (&gpus, "2"), (&other, "10k")]);
        assert!(changes(LeaseId(7), &whole, Some(&wanted)).is_empty());
        assert_eq!(
            changes(LeaseId(7), &whole, None),
            BTreeMap::from([(places.clone(), None), (gpus.clone(), None)]),
            "a node of another lease"
        );
        let reset = capacity(&[(&places, "0"), (&gpus, "2")]);
        assert_eq!(changes(LeaseId(7), &reset, Some(&wanted)), BTreeMap::from([(places, Some(10_000))]));
        assert_eq!(changes(LeaseId(7), &BTreeMap::new(), Some(&wanted)).len(), 2, "a Node made again");
    }

    #[test]
    fn a_node_that_is_gone_is_not_replaced_by_another() {
        for nodes in [&["a", "gone"][..], &[]] {
            let error = select(&lease(nodes), &cluster(), &SALT).unwrap_err();
            assert!(matches!(error, DeliveryError::Permanent { code: "nodes-gone", .. }), "{error}");
        }
    }
}
