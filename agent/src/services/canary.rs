//! Proves each node before it lends (`canary`): containers that ask for no GPU see none, and the CNI enforces
//! NetworkPolicies.
//!
//! Where NVIDIA's container runtime is the default, `NVIDIA_VISIBLE_DEVICES=all` gives a container every GPU of the
//! node, unless `accept-nvidia-visible-devices-envvar-when-unprivileged` is false. Admission policies refuse the
//! variable in pods, and cannot see it in images. So a pod of an image that sets it looks for devices on each node.
//!
//! What guests reach is restricted by NetworkPolicies, which nothing but the CNI enforces. So the pod, whose egress a
//! NetworkPolicy denies, also tries to connect to the API server. It must not connect while its control, a pod without
//! such a policy, does: otherwise a network that is down would look like an enforced policy.
//!
//! The finished pods are the record, so a restart of the agent proves nothing twice. A node that is not proved is
//! offered as unschedulable: its leases go on, and no new one is placed there.

mod canary_pair;
mod canary_plan;
mod canary_pod;
mod canary_policy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::object_events::{node_reference, publish_event};
use comity_agent_kubernetes::own_pods::OwnPods;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_model::node_id::NodeSalt;
use comity_agent_model::nodes::Nodes;
use comity_proto::v1;
use comity_runtime::Clock;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::events::{Event, EventType};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{CanarySettings, NetworkPolicies};
use canary_pair::Finding;
use canary_plan::{CanaryPlan, LendingNode, ProofRules, plan};
use canary_pod::{CanaryMaker, CanaryPod, Role};

pub use canary_pod::CANARY_NAMESPACE;
pub use canary_policy::check_policy;

/// How often the plan is made without a change.
const CANARY_INTERVAL: Duration = Duration::from_secs(2);
/// How long the offer waits at the start until nodes and canaries are read.
const FIRST_LIST_PATIENCE: Duration = Duration::from_secs(20);

/// Nodes that may not lend, with the reason.
pub type Unproved = Arc<BTreeMap<String, String>>;

/// Dependencies of the task.
pub struct CanaryContext {
    /// The API server.
    pub client: Client,
    /// The section `canary`.
    pub settings: CanarySettings,
    /// RuntimeClass of guests' pods, if they have one.
    pub runtime_class: Option<String>,
    /// Salt of node ids.
    pub salt: NodeSalt,
    /// The inventory.
    pub nodes: watch::Receiver<Nodes>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Where the results go.
pub struct CanaryResults {
    /// The inventory, in which nodes that are not proved are unschedulable.
    pub offered: watch::Sender<Nodes>,
    /// For people.
    pub unproved: watch::Sender<Unproved>,
}

/// Runs until told to stop. Canaries stay: they are the record.
pub async fn run(mut context: CanaryContext, results: CanaryResults, stop: CancellationToken) {
    let nodes = Api::<Node>::all(context.client.clone());
    let mut node_events = watcher(nodes, watcher::Config::default()).default_backoff().boxed();
    let mut prover = Prover::new(&context, results);
    let mut pod_events = prover.own.events();
    let (mut nodes, mut pods) = (WatchCache::<(String, LendingNode)>::default(), WatchCache::<CanaryPod>::default());
    let rules = ProofRules { every: context.settings.every(), roles: roles(context.settings.network_policies) };
    let began = context.clock.elapsed();
    loop {
        let is_changed = tokio::select! {
            () = stop.cancelled() => return,
            Some(event) = node_events.next() => match event {
                Ok(event) => nodes.take(event, |node| node_entry(node, &context.salt)),
                Err(error) => {
                    prover.own.failed("watch nodes", &error.to_string());
                    false
                }
            },
            Some(event) = pod_events.next() => match event {
                Ok(event) => pods.take(event, |pod| Some((pod.uid()?, CanaryPod::of(pod)))),
                Err(error) => {
                    prover.own.failed("watch canaries", &error.to_string());
                    false
                }
            },
            Ok(()) = context.nodes.changed() => true,
            () = context.clock.sleep(CANARY_INTERVAL) => true,
        };
        let Some(inventory) = context.nodes.borrow_and_update().clone().filter(|_| is_changed) else { continue };
        let offered: BTreeSet<&str> = inventory.iter().map(|node| node.id.as_str()).collect();
        if nodes.is_complete() && pods.is_complete() {
            let lending = nodes.facts().filter(|(id, _)| offered.contains(id.as_str())).map(|(_, node)| node.clone());
            let lending: Vec<LendingNode> = lending.collect();
            let canaries: Vec<&CanaryPod> = pods.facts().collect();
            let mut plan = plan(&lending, &canaries, context.clock.unix_ms(), rules);
            let refused = prover.carry_out(&plan).await;
            plan.note_refused(&refused);
            prover.publish(&inventory, plan.unproved.clone());
            prover.tell(&plan).await;
        } else if context.clock.elapsed().saturating_sub(began) > FIRST_LIST_PATIENCE {
            let reason = "its canary cannot be read; apply deploy/agent/canary.yaml";
            prover.publish(&inventory, offered.into_iter().map(|id| (id.to_owned(), reason.to_owned())).collect());
        }
    }
}

/// The canaries of a pair.
const fn roles(policies: NetworkPolicies) -> &'static [Role] {
    match policies {
        // The control first: it is to run when the other one does.
        NetworkPolicies::Required => &[Role::Control, Role::Restricted],
        NetworkPolicies::NotEnforced => &[Role::Restricted],
    }
}

fn node_entry(node: &Node, salt: &NodeSalt) -> Option<(String, Option<(String, LendingNode)>)> {
    let name = node.metadata.name.clone()?;
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let environment =
        info.map(|info| format!("{} {}", info.boot_id, info.container_runtime_version)).unwrap_or_default();
    let lending = LendingNode { name: name.clone(), environment };
    Some((name.clone(), Some((salt.node_id(&name), lending))))
}

/// Makes and deletes canaries, and publishes what they prove.
struct Prover {
    client: Client,
    own: OwnPods,
    maker: CanaryMaker,
    policies: NetworkPolicies,
    salt: NodeSalt,
    results: CanaryResults,
    /// Findings that have an event, by node.
    told: BTreeMap<String, Finding>,
}

impl Prover {
    fn new(context: &CanaryContext, results: CanaryResults) -> Self {
        let maker = CanaryMaker { image: context.settings.image.clone(), runtime_class: context.runtime_class.clone() };
        let (client, salt) = (context.client.clone(), context.salt.clone());
        let own = OwnPods::new(client.clone(), CANARY_NAMESPACE, "nodes may not be proved");
        let policies = context.settings.network_policies;
        Self { client, own, maker, policies, salt, results, told: BTreeMap::new() }
    }

    /// Writes an event on each node with a finding, once for each.
    async fn tell(&mut self, plan: &CanaryPlan) {
        self.told.retain(|node, _| plan.findings.contains_key(node));
        for (node, finding) in &plan.findings {
            if self.told.insert(node.clone(), finding.clone()).as_ref() == Some(finding) {
                continue;
            }
            let event = Event {
                type_: EventType::Warning,
                reason: finding.event_reason().to_owned(),
                note: Some(format!("this node is not lent: {finding}")),
                action: "Prove".to_owned(),
                secondary: None,
            };
            let published = within_limit(publish_event(self.client.clone(), &node_reference(node), event)).await;
            self.own.note("write an event on a node", published);
        }
    }

    /// Returns the nodes whose canaries could not be made, with the reason.
    async fn carry_out(&mut self, plan: &CanaryPlan) -> BTreeMap<String, String> {
        for pod in &plan.delete {
            self.own.delete(&pod.name, &pod.uid).await;
        }
        let mut refused = BTreeMap::new();
        if plan.make.is_empty() {
            return refused;
        }
        if self.policies == NetworkPolicies::Required
            && let Err(reason) = check_policy(&self.client).await
        {
            return plan.make.iter().map(|wanted| (wanted.node.clone(), reason.clone())).collect();
        }
        for wanted in &plan.make {
            // Without the first of a pair, the other one would prove nothing.
            if refused.contains_key(&wanted.node) {
                continue;
            }
            if let Some(reason) = self.own.make(self.maker.pod(wanted)).await {
                refused.insert(wanted.node.clone(), reason);
            }
        }
        refused
    }

    /// Publishes the inventory, with nodes by name, or by id before the names are known.
    fn publish(&mut self, inventory: &Arc<Vec<v1::Node>>, unproved: BTreeMap<String, String>) {
        let ids: BTreeSet<String> = unproved.keys().flat_map(|node| [node.clone(), self.salt.node_id(node)]).collect();
        let offered = Some(gated(inventory, &ids));
        self.results.offered.send_if_modified(|before| {
            let differs = *before != offered;
            if differs {
                before.clone_from(&offered);
            }
            differs
        });
        self.results.unproved.send_if_modified(|before| {
            for (node, reason) in &unproved {
                if before.get(node) != Some(reason) {
                    tracing::warn!(node, reason, "this node is not lent");
                }
            }
            for node in before.keys().filter(|node| !unproved.contains_key(*node)) {
                tracing::info!(node, "this node is lent: its canaries found nothing");
            }
            let differs = **before != unproved;
            if differs {
                *before = Arc::new(unproved);
            }
            differs
        });
    }
}

/// The inventory with these nodes unschedulable.
fn gated(inventory: &Arc<Vec<v1::Node>>, unproved: &BTreeSet<String>) -> Arc<Vec<v1::Node>> {
    if unproved.is_empty() {
        return Arc::clone(inventory);
    }
    let gate =
        |node: &v1::Node| v1::Node { schedulable: node.schedulable && !unproved.contains(&node.id), ..node.clone() };
    Arc::new(inventory.iter().map(gate).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_that_are_not_proved_become_unschedulable() {
        let node = |id: &str, schedulable| v1::Node { id: id.to_owned(), schedulable, ..v1::Node::default() };
        let inventory = Arc::new(vec![node("a", true), node("b", true), node("c", false)]);
        let lends = |unproved: &[&str]| {
            let unproved = unproved.iter().map(|id| (*id).to_owned()).collect();
            gated(&inventory, &unproved).iter().map(|node| node.schedulable).collect::<Vec<_>>()
        };
        assert_eq!(lends(&[]), [true, true, false]);
        assert_eq!(lends(&["b", "c"]), [true, false, false]);
    }
}
