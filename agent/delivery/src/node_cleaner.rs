//! Cleans a donor's nodes after a lease (`sharing.cleanNodes`), by pods that the donor describes.
//!
//! The agent may not make privileged pods of its own choice. The donor's PodTemplate `comity-clean/comity-clean` says
//! what runs, and the admission policy of `deploy/agent/clean.yaml` refuses every other pod in that namespace. The agent
//! chooses only the node. A lease ends once all its nodes are clean, so the broker lends none of them before.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use comity_agent_kubernetes::call::{Pager, call, call_opt, creating, own_labels};
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_kubernetes::object_events::{node_reference, publish_event};
use comity_agent_kubernetes::own_pods::{PodNamespace, at_once};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::lease_id::LEASE_LABEL;
use comity_agent_model::node_id::NodeSalt;
use comity_runtime::Clock;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Node, Pod, PodTemplate, Toleration};
use kube::api::{ListParams, ObjectMeta};
use kube::core::PartialObjectMeta;
use kube::runtime::events::{Event, EventType};
use kube::{Api, Client, ResourceExt as _};

/// Namespace of cleaning pods and of their template.
pub const CLEANING_NAMESPACE: PodNamespace = PodNamespace { name: "comity-clean", manifest: "deploy/agent/clean.yaml" };
/// Name of the template.
const CLEANING_TEMPLATE: &str = "comity-clean";
/// How long one call waits for the pods; the caller retries.
const CLEANING_WAIT: Duration = Duration::from_secs(90);
const CLEANING_POLL: Duration = Duration::from_millis(500);

/// Runs the donor's cleaning pod on nodes.
pub struct NodeCleaner {
    client: Client,
    salt: NodeSalt,
    clock: Arc<dyn Clock>,
    failures: Mutex<FailureLog>,
}

/// Without the salt, which hides node names from brokers.
impl fmt::Debug for NodeCleaner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCleaner").finish_non_exhaustive()
    }
}

/// State of a cleaning pod.
#[derive(Debug, PartialEq, Eq)]
enum Cleaning {
    Runs(String),
    Done,
    Failed(String),
}

impl NodeCleaner {
    /// A cleaner of one cluster's nodes.
    #[must_use]
    pub fn new(client: Client, salt: NodeSalt, clock: Arc<dyn Clock>) -> Self {
        Self { client, salt, clock, failures: Mutex::default() }
    }

    fn pods(&self) -> Api<Pod> {
        CLEANING_NAMESPACE.pods(self.client.clone())
    }

    /// The donor's template.
    ///
    /// # Errors
    /// A permanent [`DeliveryError`] `cannot-clean` if there is none: nodes that nobody can clean are not lent.
    pub async fn template(&self) -> Result<PodTemplate, DeliveryError> {
        let templates = Api::<PodTemplate>::namespaced(self.client.clone(), CLEANING_NAMESPACE.name);
        let read = call_opt("read the cleaning pod's template", templates.get(CLEANING_TEMPLATE)).await;
        // Without deploy/agent/clean.yaml there is neither a template nor the right to read it.
        let why = match read {
            Ok(Some(template)) if template.template.as_ref().is_some_and(|pod| pod.spec.is_some()) => {
                return Ok(template);
            }
            Ok(Some(_)) => "it has no spec".to_owned(),
            Ok(None) => "there is none".to_owned(),
            Err(temporary @ DeliveryError::Temporary { .. }) => return Err(temporary),
            Err(refused) => refused.to_string(),
        };
        let PodNamespace { name, manifest } = CLEANING_NAMESPACE;
        let message = format!(
            "sharing.cleanNodes needs the PodTemplate {name}/{CLEANING_TEMPLATE}: {why}; apply {manifest} with your own \
             cleaning program"
        );
        Err(DeliveryError::permanent("cannot-clean", message))
    }

    /// Cleans those of the nodes, named by their ids, that are in the cluster; returns when all are clean. Idempotent.
    ///
    /// # Errors
    /// A temporary [`DeliveryError`] while a pod runs, after a failed one (the next call makes another), or without a
    /// template.
    pub async fn clean(&self, lease: LeaseId, nodes: &BTreeSet<String>) -> Result<(), DeliveryError> {
        if nodes.is_empty() {
            return Ok(());
        }
        let template = self.template().await.map_err(|error| DeliveryError::temporary("clean nodes", error))?;
        let present = self.present(nodes).await?;
        for node in &present {
            let pod = self.cleaning_pod(lease, node, &template);
            let name = pod.name_any();
            let operation = format!("make cleaning pod {}/{name}", CLEANING_NAMESPACE.name);
            if call_opt(&format!("read pod {name}"), self.pods().get(&name)).await?.is_none() {
                // Whatever is refused here may be allowed after a change of the template or of the policy.
                let made = call(&operation, self.pods().create(&creating(), &pod)).await;
                made.map_err(|error| DeliveryError::temporary(operation, error))?;
            }
        }
        let began = self.clock.elapsed();
        for node in &present {
            self.await_clean(lease, node, began).await?;
        }
        Ok(())
    }

    async fn await_clean(&self, lease: LeaseId, node: &str, began: Duration) -> Result<(), DeliveryError> {
        let name = self.pod_name(lease, node);
        let operation = format!("clean node {node} after {lease}");
        loop {
            let read = call_opt(&format!("read pod {name}"), self.pods().get(&name)).await?;
            let Some(pod) = read else {
                return Err(DeliveryError::temporary(operation, "somebody deleted the cleaning pod"));
            };
            match state(&pod) {
                Cleaning::Done => {
                    self.delete(&pod).await?;
                    self.failures().cleared(node);
                    return Ok(());
                }
                Cleaning::Failed(reason) => {
                    self.tell(lease, node, &reason).await;
                    self.delete(&pod).await?;
                    return Err(DeliveryError::temporary(operation, reason));
                }
                Cleaning::Runs(waits) if self.clock.elapsed().saturating_sub(began) > CLEANING_WAIT => {
                    return Err(DeliveryError::temporary(operation, waits));
                }
                Cleaning::Runs(_) => self.clock.sleep(CLEANING_POLL).await,
            }
        }
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, FailureLog> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an event on the node, once for each reason.
    async fn tell(&self, lease: LeaseId, node: &str, reason: &str) {
        if !self.failures().is_new(node, reason) {
            return;
        }
        let event = Event {
            type_: EventType::Warning,
            reason: "ComityCleaningFailed".to_owned(),
            note: Some(format!("{lease} ends once this node is clean: {reason}")),
            action: "Clean".to_owned(),
            secondary: None,
        };
        if let Err(error) = publish_event(self.client.clone(), &node_reference(node), event).await {
            tracing::warn!(%error, node, "cannot write an event");
        }
    }

    async fn delete(&self, pod: &Pod) -> Result<(), DeliveryError> {
        let name = pod.name_any();
        call_opt(&format!("delete pod {name}"), self.pods().delete(&name, &at_once(pod.uid()))).await.map(drop)
    }

    /// Names of the cluster's nodes with one of the ids.
    async fn present(&self, ids: &BTreeSet<String>) -> Result<Vec<String>, DeliveryError> {
        let nodes = Api::<Node>::all(self.client.clone());
        let mut pager = Pager::new(ListParams::default());
        let mut names = Vec::new();
        while let Some(page) = pager.page() {
            let list = call("list nodes", nodes.list_metadata(page)).await?;
            pager.turn(&list.metadata);
            names.extend(list.items.iter().map(PartialObjectMeta::<Node>::name_any));
        }
        names.retain(|name| ids.contains(&self.salt.node_id(name)));
        Ok(names)
    }

    fn pod_name(&self, lease: LeaseId, node: &str) -> String {
        format!("{lease}-{}", self.salt.node_id(node))
    }

    fn cleaning_pod(&self, lease: LeaseId, node: &str, template: &PodTemplate) -> Pod {
        let (metadata, spec) = template.template.clone().map(|pod| (pod.metadata, pod.spec)).unwrap_or_default();
        let mut labels = metadata.unwrap_or_default().labels.unwrap_or_default();
        labels.extend(own_labels([(LEASE_LABEL, lease.to_string().as_str())]));
        let mut spec = spec.unwrap_or_default();
        spec.node_name = Some(node.to_owned());
        spec.restart_policy = Some("Never".to_owned());
        // The node may have taints of every kind.
        let all = Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() };
        spec.tolerations.get_or_insert_default().push(all);
        let metadata =
            ObjectMeta { name: Some(self.pod_name(lease, node)), labels: Some(labels), ..ObjectMeta::default() };
        Pod { metadata, spec: Some(spec), status: None }
    }
}

fn state(pod: &Pod) -> Cleaning {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.unwrap_or_default();
    match phase.as_str() {
        "Succeeded" => Cleaning::Done,
        "Failed" => {
            let containers = status.container_statuses.unwrap_or_default();
            let ended = containers.into_iter().filter_map(|container| container.state?.terminated);
            let first = ended.filter(|ended| ended.exit_code != 0).map(|ended| describe(&ended)).next();
            let whole = status.message.or(status.reason).unwrap_or_else(|| "no reason given".to_owned());
            Cleaning::Failed(format!("the cleaning pod failed: {}", first.unwrap_or(whole)))
        }
        _ => Cleaning::Runs(format!("the cleaning pod {}/{} is {phase}", CLEANING_NAMESPACE.name, pod.name_any())),
    }
}

fn describe(ended: &ContainerStateTerminated) -> String {
    let message = ended.message.as_deref().or(ended.reason.as_deref()).unwrap_or("no message").trim();
    format!("exit code {}: {message}", ended.exit_code)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pods_end_says_why_it_failed() {
        let of = |status| {
            let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "a" }, "status": status })).unwrap();
            state(&pod)
        };
        assert_eq!(of(json!({ "phase": "Succeeded" })), Cleaning::Done);
        assert_eq!(
            of(json!({ "phase": "Pending" })),
            Cleaning::Runs("the cleaning pod comity-clean/a is Pending".to_owned())
        );
        let ended = json!({ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": { "exitCode": 3, "message": "GPU 2: process 4711 is left\n" } } });
        assert_eq!(
            of(json!({ "phase": "Failed", "containerStatuses": [ended] })),
            Cleaning::Failed("the cleaning pod failed: exit code 3: GPU 2: process 4711 is left".to_owned())
        );
        assert_eq!(
            of(json!({ "phase": "Failed", "reason": "DeadlineExceeded" })),
            Cleaning::Failed("the cleaning pod failed: DeadlineExceeded".to_owned())
        );
    }
}
