//! The processes of a chaos test: control planes, brokers, agents and the relays between them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, Needs, SimulatedNode};
use futures::{StreamExt as _, TryStreamExt as _};

use super::chaos_policy::{cluster_id, write_policy};
use super::federation_faults::Shape;
use super::relay::Line;
use crate::apply_admission;
use crate::federation::{AgentSpec, Federation, FederationConfig, InventorySource};

/// Nodes of a donor.
const NODES: u32 = 2;
/// GPUs of each of them.
const GPUS_PER_DONOR_NODE: u32 = 8;
/// Time slices of each GPU of the last donor.
const SLICES: u32 = 4;
/// Control planes that start at the same time: each takes a core or two while it does.
const STARTING_AT_ONCE: usize = 2;
/// Kinds of objects that a lease could leave behind.
const KINDS: &str = "namespaces,resourcequotas,limitranges,serviceaccounts,secrets,configmaps,pods,\
networkpolicies.networking.k8s.io,roles.rbac.authorization.k8s.io,rolebindings.rbac.authorization.k8s.io,\
clusterroles.rbac.authorization.k8s.io,clusterrolebindings.rbac.authorization.k8s.io";

/// One cluster with its agent.
pub(super) struct Cluster {
    /// Its id.
    pub(super) id: String,
    /// Its control plane; none: its agent runs on an inventory file.
    pub(super) plane: Option<ControlPlane>,
    /// Between its agent and the brokers.
    pub(super) line: Line,
    /// Objects on it before the first lease.
    before: BTreeSet<String>,
}

/// All processes of a run.
pub(super) struct World {
    pub(super) federation: Federation,
    /// Donors first.
    pub(super) clusters: Vec<Cluster>,
    // Dropped last, because the processes use it.
    _folder: tempfile::TempDir,
}

impl World {
    /// Starts everything.
    ///
    /// # Errors
    /// Names the process that does not start.
    pub(super) async fn start(shape: Shape) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("comity-chaos-").tempdir()?;
        let planes = control_planes(shape, folder.path()).await?;
        let policy = folder.path().join("policy");
        write_policy(&policy, shape)?;
        // Snapshots are taken, and logs purged, many times in a run.
        let config = FederationConfig { policy, snapshot_every: 500, ..FederationConfig::with_example_policy() };
        let mut federation = Federation::start(config).await?;
        let mut clusters = Vec::new();
        let mut planes = planes.into_iter();
        for number in 0..shape.donors + shape.origins {
            let (id, plane) = (cluster_id(shape, number), planes.next());
            let inventory = match &plane {
                Some(plane) => InventorySource::Kubernetes(plane.admin_kubeconfig_path()),
                None => InventorySource::File(no_gpus(folder.path(), &id)?),
            };
            let line = Line::lay(&federation.broker_addresses()).await?;
            let more = format!("brokers: ['{}']\n", line.addresses().join("', '"));
            federation.join(AgentSpec { more, ..AgentSpec::new(&id, inventory) }).await?;
            clusters.push(Cluster { id, plane, line, before: BTreeSet::new() });
        }
        federation.all_connected().await?;
        for cluster in &mut clusters {
            cluster.before = cluster.objects().await?;
        }
        Ok(Self { federation, clusters, _folder: folder })
    }

    /// Ends everything.
    ///
    /// # Errors
    /// When files cannot be removed.
    pub(super) async fn stop(self) -> Result<()> {
        drop(self.federation);
        for plane in self.clusters.into_iter().filter_map(|cluster| cluster.plane) {
            plane.stop().await?;
        }
        Ok(())
    }
}

impl Cluster {
    /// Objects that were not there before the first lease.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub(super) async fn left_over(&self) -> Result<Vec<String>> {
        let now = self.objects().await?;
        Ok(now.difference(&self.before).filter(|object| !stays(object)).cloned().collect())
    }

    /// Everything that a lease could leave, as "Kind namespace/name".
    async fn objects(&self) -> Result<BTreeSet<String>> {
        let Some(plane) = &self.plane else { return Ok(BTreeSet::new()) };
        const ROWS: &str = r#"jsonpath={range .items[*]}{.kind}{" "}{.metadata.namespace}/{.metadata.name}{"\n"}{end}"#;
        let rows = plane.kubectl(&["get", KINDS, "--all-namespaces", "-o", ROWS]).await?;
        Ok(rows.lines().map(str::to_owned).collect())
    }
}

/// The namespace for kubeconfig Secrets stays, with what Kubernetes puts into every namespace, and so does the tenants'
/// role.
fn stays(object: &str) -> bool {
    matches!(
        object,
        "Namespace /comity-leases"
            | "ServiceAccount comity-leases/default"
            | "ConfigMap comity-leases/kube-root-ca.crt"
            | "ClusterRole /comity-tenant"
    )
}

async fn control_planes(shape: Shape, folder: &Path) -> Result<Vec<ControlPlane>> {
    let binaries = Binaries::ensure(Needs::ControlPlane).await?;
    let start = |number: usize| {
        let id = cluster_id(shape, number);
        let mut config = ControlPlaneConfig::new(&id, folder.join(&id));
        config.nodes = nodes(shape, number);
        config.patience = Duration::from_secs(300);
        let binaries = &binaries;
        async move {
            eprintln!("control plane of {id}");
            let plane = ControlPlane::start(binaries, config).await;
            let plane = plane.with_context(|| format!("control plane of {id}"))?;
            apply_admission(&plane).await?;
            anyhow::Ok(plane)
        }
    };
    futures::stream::iter(0..shape.control_planes).map(start).buffered(STARTING_AT_ONCE).try_collect().await
}

fn nodes(shape: Shape, number: usize) -> Vec<SimulatedNode> {
    if number >= shape.donors {
        return vec![SimulatedNode::without_gpus("node-1")];
    }
    let is_shared = shape.donors > 1 && number + 1 == shape.donors;
    (1..=NODES)
        .map(|node| {
            let node = SimulatedNode::h100(&format!("node-{node}"), GPUS_PER_DONOR_NODE);
            if !is_shared {
                return node;
            }
            let product = format!("{}-SHARED", node.labels["nvidia.com/gpu.product"]);
            SimulatedNode { gpus: GPUS_PER_DONOR_NODE * SLICES, ..node }
                .label("nvidia.com/gpu.product", &product)
                .label("nvidia.com/gpu.replicas", &SLICES.to_string())
                .label("nvidia.com/gpu.sharing-strategy", "time-slicing")
        })
        .collect()
}

fn no_gpus(folder: &Path, id: &str) -> Result<PathBuf> {
    let path = folder.join(format!("{id}.inventory.yaml"));
    fs::write(&path, "nodes: []\n")?;
    Ok(path)
}
