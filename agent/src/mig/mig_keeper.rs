//! Carries out the plans of all nodes, one step after another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::call::{Pager, call, patching};
use comity_agent_kubernetes::pod_request::effective_request;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::desired::Update;
use comity_agent_model::desired_state::DesiredState;
use comity_agent_state::record::{AdmittedCapacity, DonorRecord, Records};
use comity_runtime::Clock;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{ListParams, Patch, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::mig_book::{CutRefusal, LeaseCut, MigBook};
use super::mig_config::{MigConfigs, with_own};
use super::mig_node::{BEFORE_ANNOTATION, CHANGE_ANNOTATION, CONFIG_LABEL, MigNode, MigNodes, of};
use super::mig_settings::MigSettings;
use super::node_memory::NodeMemory;
use super::node_plan::{ApplyStep, CutStep, NodePlan, plan};
use super::node_state::{LeaseNeed, NodeState};

/// Shortest pause between rounds.
const MIN_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause while something is under way, and otherwise.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
const IDLE_PAUSE: Duration = Duration::from_secs(15);
/// Writes to one node in one round.
const MAX_STEPS: usize = 2;

/// The observer's ends of the channels.
#[derive(Debug)]
pub struct MigView {
    /// Nodes that the agent may cut.
    pub(crate) nodes: watch::Sender<MigNodes>,
    /// Their layouts.
    pub(crate) book: watch::Receiver<MigBook>,
}

/// The keeper's ends.
#[derive(Debug)]
pub struct MigChannels {
    nodes: watch::Receiver<MigNodes>,
    book: watch::Sender<MigBook>,
}

impl MigChannels {
    /// A pair.
    #[must_use]
    pub fn new() -> (Self, MigView) {
        let (publish_nodes, nodes) = watch::channel(None);
        let (publish_book, book) = watch::channel(MigBook::default());
        (Self { nodes, book: publish_book }, MigView { nodes: publish_nodes, book })
    }

    /// Follows the book.
    #[must_use]
    pub fn book(&self) -> watch::Receiver<MigBook> {
        self.book.subscribe()
    }
}

/// Checks that the ConfigMap can be read and takes configurations of the agent. Returns how many it has.
///
/// # Errors
/// One sentence.
pub async fn check_configs(client: &Client, settings: &MigSettings) -> Result<usize, String> {
    let read = read_configs(client, settings).await?;
    let in_place = with_own(&read.text, &vec![None], &BTreeSet::new());
    in_place.map_err(|reason| format!("ConfigMap {}: {reason}", settings.config_map))?;
    Ok(read.configs.number())
}

/// Publishes the layouts as they are once the nodes are known, and changes nothing: for checks of what would be offered.
pub async fn preview(client: Client, settings: MigSettings, clock: Arc<dyn Clock>, mut channels: MigChannels) {
    let Ok(nodes) = channels.nodes.wait_for(Option::is_some).await.map(|nodes| nodes.clone()) else { return };
    let read = read_configs(&client, &settings).await;
    let mut book = MigBook { is_complete: true, ..MigBook::default() };
    for node in nodes.iter().flat_map(|nodes| nodes.iter()) {
        let configs = read.as_ref().map(|read| &read.configs).map_err(String::as_str);
        let (now, unix_seconds) = (clock.elapsed(), clock.unix_ms() / 1000);
        let state = NodeState { node, leases: &[], configs, settings: &settings, now, unix_seconds };
        book.nodes.insert(node.name.clone(), plan(state, NodeMemory::default()).book);
    }
    channels.book.send_replace(book);
}

/// Reads the ConfigMap; an error is one sentence.
async fn read_configs(client: &Client, settings: &MigSettings) -> Result<ReadConfigs, String> {
    let of_map = &settings.config_map;
    let (namespace, name) = settings.namespace_and_name().ok_or("mig.configMap names no ConfigMap")?;
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let operation = format!("read ConfigMap {of_map} (deploy/agent/mig.yaml)");
    let map = call(&operation, maps.get(name)).await.map_err(|error| error.to_string())?;
    let text = map.data.as_ref().and_then(|data| data.get(&settings.key)).cloned();
    let text = text.ok_or_else(|| format!("ConfigMap {of_map} has no key {}", settings.key))?;
    let configs = MigConfigs::read(&text).map_err(|reason| format!("ConfigMap {of_map}: {reason}"))?;
    Ok(ReadConfigs { map, text, configs })
}

/// Cuts the MIG devices of a cluster.
pub struct MigKeeper {
    /// The cluster's API.
    pub client: Client,
    /// Settings, with repartition on.
    pub settings: MigSettings,
    /// Channels to the observer.
    pub channels: MigChannels,
    /// The desired state before the first one of a broker.
    pub remembered: DesiredState,
    /// Desired states, which say whether a lease is wanted.
    pub desired: watch::Receiver<Update>,
    /// The leases that this donor admitted, with their devices. A broker may say something else afterwards.
    pub records: watch::Receiver<Arc<Records>>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// A lease that holds MIG instances at known slots.
#[derive(Clone, Debug)]
struct MigLease {
    id: LeaseId,
    capacity: AdmittedCapacity,
}

/// The ConfigMap and its configurations.
struct ReadConfigs {
    map: ConfigMap,
    text: String,
    configs: MigConfigs,
}

impl MigKeeper {
    /// Runs until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut memories: BTreeMap<String, NodeMemory> = BTreeMap::new();
        loop {
            let holders = holders(&self.records.borrow_and_update());
            let is_busy = self.round(&mut memories).await;
            let pause = if is_busy { BUSY_PAUSE } else { IDLE_PAUSE };
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = self.channels.nodes.changed() => {}
                Ok(()) = self.desired.changed() => {}
                () = other_holders(&mut self.records, &holders) => {}
                () = self.clock.sleep(pause) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.clock.sleep(MIN_PAUSE) => {}
            }
        }
    }

    /// Plans every node and writes. Returns whether something is under way.
    async fn round(&mut self, memories: &mut BTreeMap<String, NodeMemory>) -> bool {
        let Some(nodes) = self.channels.nodes.borrow_and_update().clone() else { return true };
        let leases = self.leases();
        let mut read = read_configs(&self.client, &self.settings).await;
        memories.retain(|name, _| nodes.iter().any(|node| node.name == *name));
        let mut book = MigBook { is_complete: true, ..MigBook::default() };
        let mut is_busy = false;
        for node in nodes.iter() {
            let needs = needs(&leases, &node.id);
            let memory = memories.remove(&node.name).unwrap_or_default();
            let planned = self.carry_out(&nodes, node, &needs, &mut read, memory).await;
            is_busy |= planned.memory.is_busy() || planned.leases.values().any(|cut| *cut != LeaseCut::Ready);
            for (lease, cut) in planned.leases {
                let before = book.leases.remove(&lease).unwrap_or(LeaseCut::Ready);
                book.leases.insert(lease, before.and(cut));
            }
            book.nodes.insert(node.name.clone(), planned.book);
            memories.insert(node.name.clone(), planned.memory);
        }
        for lease in &leases {
            if let Some(refusal) = not_allowed(lease, &nodes) {
                book.leases.insert(lease.id, LeaseCut::Refused(refusal));
            }
        }
        self.channels.book.send_if_modified(|current| {
            let differs = *current != book;
            *current = book;
            differs
        });
        is_busy
    }

    /// Plans a node, writes, and plans again with what was written. A failed write leaves the memory as it was.
    async fn carry_out(
        &self,
        nodes: &[MigNode],
        node: &MigNode,
        needs: &[LeaseNeed],
        read: &mut Result<ReadConfigs, String>,
        mut memory: NodeMemory,
    ) -> NodePlan {
        let mut steps = 0;
        loop {
            let configs = read.as_ref().map(|read| &read.configs).map_err(String::as_str);
            let (settings, now) = (&self.settings, self.clock.elapsed());
            let unix_seconds = self.clock.unix_ms() / 1000;
            let state = NodeState { node, leases: needs, configs, settings, now, unix_seconds };
            let mut planned = plan(state, memory.clone());
            let Some(step) = planned.step.take().filter(|_| steps < MAX_STEPS) else { return planned };
            steps += 1;
            match self.write(nodes, node, read, &step).await {
                Ok(()) => {
                    tracing::info!(node = node.name, ?step, "changes the MIG configuration of a node");
                    memory = planned.memory;
                    if !matches!(step, CutStep::Apply(_)) {
                        return NodePlan { memory, ..planned };
                    }
                }
                Err(error) => {
                    tracing::warn!(node = node.name, %error, "cannot change the MIG configuration of a node");
                    for cut in planned.leases.values_mut().filter(|cut| matches!(cut, LeaseCut::Waiting(_))) {
                        *cut = LeaseCut::Waiting(error.to_string());
                    }
                    return NodePlan { memory, ..planned };
                }
            }
        }
    }

    /// Wanted leases that this cluster admitted, in the order in which they were granted.
    fn leases(&mut self) -> Vec<MigLease> {
        let wanted: BTreeSet<LeaseId> = {
            let update = self.desired.borrow_and_update();
            let state = update.state.as_deref().unwrap_or(&self.remembered);
            state.leases.iter().filter(|lease| lease.is_wanted()).map(|lease| lease.id).collect()
        };
        mig_leases(&self.records.borrow(), &wanted)
    }

    async fn write(
        &self,
        nodes: &[MigNode],
        node: &MigNode,
        read: &mut Result<ReadConfigs, String>,
        step: &CutStep,
    ) -> Result<(), DeliveryError> {
        match step {
            CutStep::SetLabel(name) => self.patch(node, serde_json::json!({ "labels": { CONFIG_LABEL: name } })).await,
            CutStep::ForgetBefore => {
                self.patch(node, serde_json::json!({ "annotations": { BEFORE_ANNOTATION: null } })).await
            }
            CutStep::ForgetChange => {
                self.patch(node, serde_json::json!({ "annotations": { CHANGE_ANNOTATION: null } })).await
            }
            CutStep::Apply(step) => {
                self.check_unused(node, &step.unused).await?;
                self.write_config(nodes, read, step).await?;
                self.patch(node, applying(step)).await
            }
        }
    }

    async fn patch(&self, node: &MigNode, metadata: serde_json::Value) -> Result<(), DeliveryError> {
        let nodes = Api::<Node>::all(self.client.clone());
        let patch = Patch::Merge(serde_json::json!({ "metadata": metadata }));
        let parameters = patching();
        let patched = nodes.patch_metadata(&node.name, &parameters, &patch);
        call(&format!("label node {} (deploy/agent/mig.yaml)", node.name), patched).await.map(drop)
    }

    /// Checks that no pod of the node uses these resources now: the observer's facts are a moment old.
    async fn check_unused(&self, node: &MigNode, resources: &BTreeSet<String>) -> Result<(), DeliveryError> {
        let operation = format!("list the pods of node {}", node.name);
        let pods = Api::<Pod>::all(self.client.clone());
        let on_node = format!("spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed", node.name);
        let mut pager = Pager::new(ListParams::default().fields(&on_node));
        while let Some(page) = pager.page() {
            let list = call(&operation, pods.list(page)).await?;
            pager.turn(&list.metadata);
            let requests = list.items.iter().map(effective_request);
            let used = |request: &comity_agent_kubernetes::pod_request::Amounts| {
                resources.iter().find(|name| of(request, name) > 0).cloned()
            };
            if let Some(resource) = requests.into_iter().find_map(|request| used(&request)) {
                let operation = format!("cut a device of node {}", node.name);
                return Err(DeliveryError::temporary(operation, format!("a pod uses {resource} now")));
            }
        }
        Ok(())
    }

    /// Adds the configuration to the ConfigMap, and removes those of the agent that no node names any more.
    async fn write_config(
        &self,
        nodes: &[MigNode],
        read: &mut Result<ReadConfigs, String>,
        step: &ApplyStep,
    ) -> Result<(), DeliveryError> {
        let (Some(counts), Ok(known)) = (&step.counts, read.as_mut()) else { return Ok(()) };
        let operation = format!("add {} to ConfigMap {} (deploy/agent/mig.yaml)", step.name, self.settings.config_map);
        let kept: BTreeSet<String> = nodes.iter().flat_map(MigNode::configs).map(str::to_owned).collect();
        let (text, _) =
            with_own(&known.text, counts, &kept).map_err(|reason| DeliveryError::temporary(&operation, reason))?;
        if text == known.text {
            return Ok(());
        }
        let Some((namespace, name)) = self.settings.namespace_and_name() else { return Ok(()) };
        let maps = Api::<ConfigMap>::namespaced(self.client.clone(), namespace);
        let mut map = known.map.clone();
        map.data.get_or_insert_default().insert(self.settings.key.clone(), text.clone());
        // With the version that was read: a change by somebody else meanwhile is a conflict, and is read first.
        let map = call(&operation, maps.replace(name, &PostParams::default(), &map)).await?;
        let configs = MigConfigs::read(&text).map_err(|reason| DeliveryError::temporary(&operation, reason))?;
        *known = ReadConfigs { map, text, configs };
        Ok(())
    }
}

/// Label and annotations with which a change begins, in one write: no restart finds one without the other.
pub(crate) fn applying(step: &ApplyStep) -> serde_json::Value {
    let change = serde_json::json!(step.change).to_string();
    let mut annotations = serde_json::json!({ CHANGE_ANNOTATION: change });
    if let Some(before) = &step.before {
        annotations[BEFORE_ANNOTATION] = serde_json::json!(before);
    }
    serde_json::json!({ "labels": { CONFIG_LABEL: step.name }, "annotations": annotations })
}

/// The wanted leases among those admitted that hold MIG instances, in the order in which they were granted.
fn mig_leases(records: &Records, wanted: &BTreeSet<LeaseId>) -> Vec<MigLease> {
    let mut records: Vec<_> = holding(records).filter(|record| wanted.contains(&record.lease)).collect();
    records.sort_by_key(|record| record.fencing_token);
    records.into_iter().map(|record| MigLease { id: record.lease, capacity: record.capacity.clone() }).collect()
}

/// Admitted leases that hold MIG instances.
fn holding(records: &Records) -> impl Iterator<Item = &DonorRecord> {
    let records = records.donors.values().map(|record| &**record);
    records.filter(|record| !record.removed && record.capacity.has_mig_starts())
}

fn holders(records: &Records) -> BTreeSet<LeaseId> {
    holding(records).map(|record| record.lease).collect()
}

/// Waits until others than these hold MIG instances. Never returns once the store is closed.
async fn other_holders(records: &mut watch::Receiver<Arc<Records>>, before: &BTreeSet<LeaseId>) {
    if records.wait_for(|records| holders(records) != *before).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Why a lease cannot be served, if one of its nodes is not among those that the agent may cut.
fn not_allowed(lease: &MigLease, nodes: &[MigNode]) -> Option<CutRefusal> {
    let missing = lease.capacity.nodes.keys().find(|placed| !nodes.iter().any(|node| node.id == **placed))?;
    let message =
        format!("node {missing} has no label comity.dev/mig: \"true\" any more, so that its devices cannot be cut");
    Some(CutRefusal::new("mig-not-allowed", message))
}

/// The instances that leases have on a node.
fn needs(leases: &[MigLease], node: &str) -> Vec<LeaseNeed> {
    let need = |lease: &MigLease| {
        let mut devices: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for (device, share) in &lease.capacity.nodes.get(node)?.devices {
            if !share.mig_starts.is_empty() {
                devices.insert(usize::try_from(*device).ok()?, share.mig_starts.clone());
            }
        }
        let profile = lease.capacity.mig_profile.clone();
        (!devices.is_empty()).then_some(LeaseNeed { lease: lease.id, profile, devices })
    };
    leases.iter().filter_map(need).collect()
}

#[cfg(test)]
mod tests {
    use comity_agent_state::record::{AdmittedPart, AdmittedShare};
    use comity_types::Delivery;

    use super::*;

    fn record(id: u64, fencing_token: u64, starts: &[u8]) -> DonorRecord {
        let share = AdmittedShare { milli: 500, units: 1, mig_starts: starts.to_vec(), ..AdmittedShare::default() };
        let part = AdmittedPart { devices: [(1, share)].into(), ..AdmittedPart::default() };
        let capacity = AdmittedCapacity {
            mig_profile: "3g.40gb".to_owned(),
            nodes: [("a".to_owned(), part)].into(),
            ..AdmittedCapacity::default()
        };
        DonorRecord { capacity, ..DonorRecord::new(LeaseId(id), fencing_token, Delivery::Namespace) }
    }

    fn records(all: Vec<DonorRecord>) -> Records {
        let donors = all.into_iter().map(|record| (record.lease, Arc::new(record))).collect();
        Records { donors, ..Records::default() }
    }

    /// A broker wants leases that were not admitted, and says other devices of those that were.
    #[test]
    fn broker_reconfigures_a_foreign_gpu() {
        let held = records(vec![
            record(1, 8, &[4]),
            record(2, 7, &[0]),
            record(3, 6, &[]),
            DonorRecord { removed: true, ..record(4, 5, &[0]) },
        ]);
        let wanted: BTreeSet<LeaseId> = [1, 2, 3, 4, 9].map(LeaseId).into();
        let leases = mig_leases(&held, &wanted);
        assert_eq!(leases.iter().map(|lease| lease.id).collect::<Vec<_>>(), [LeaseId(2), LeaseId(1)]);
        let need = |lease, start: u8| LeaseNeed {
            lease: LeaseId(lease),
            profile: "3g.40gb".to_owned(),
            devices: [(1, vec![start])].into(),
        };
        assert_eq!(needs(&leases, "a"), [need(2, 0), need(1, 4)]);
        assert_eq!(needs(&leases, "b"), []);
        assert!(mig_leases(&held, &[LeaseId(9)].into()).is_empty());
        assert_eq!(holders(&held), [1, 2].map(LeaseId).into());
    }
}
