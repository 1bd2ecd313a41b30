//! Holds leased GPUs that no pod of the lease uses yet against the donor's own pods (`sharing.hold`).
//!
//! A placeholder pod requests one unit of the lease's resource on a node of the lease. It has the priority of pods
//! without a PriorityClass, so these do not preempt it, and gives way at once: while a pod of the lease waits for the
//! scheduler, this task deletes as many placeholders as the pod needs GPUs.
//!
//! It holds against pods of priority 0 or less that come later. It does not hold against pods of higher priority, pods
//! that are bound by hand, and, for the moment in which it gives way, the donor's own pods that wait for the same GPU: if
//! one of them wins, the broker sees local use and calls the lease back.

mod placeholder_plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::call::own_labels;
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_kubernetes::pod_request::effective_request;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_liqo::CREATOR_LABEL;
use comity_agent_model::lease_id::LEASE_LABEL;
use comity_agent_model::lent::{LentLease, LentLeases};
use comity_runtime::Clock;
use comity_types::LeaseId;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::observe::{LeaseDifferences, PLACEHOLDER_NAMESPACE};
use placeholder_plan::{Placeholder, PlaceholderPlan, WaitingPod};

/// PriorityClass of placeholders, in `deploy/agent/hold.yaml`.
pub const PLACEHOLDER_PRIORITY: &str = "comity-hold";
/// Annotation of placeholders: the node.
const HELD_NODE: &str = "comity.dev/held-node";
/// How often the plan is made without a change: a missing placeholder is made only once it was missing for a while.
const PLACEHOLDER_INTERVAL: Duration = Duration::from_secs(1);

/// Dependencies of the task.
pub struct PlaceholderContext {
    /// The API server.
    pub client: Client,
    /// Image of placeholders.
    pub image: String,
    /// Leases in force.
    pub lent: watch::Receiver<LentLeases>,
    /// Leased GPUs that no pod of the lease uses, among others.
    pub differences: watch::Receiver<Arc<LeaseDifferences>>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Runs until told to stop. Placeholders stay, as leases do.
pub async fn run(mut context: PlaceholderContext, stop: CancellationToken) {
    let own = Api::<Pod>::namespaced(context.client.clone(), PLACEHOLDER_NAMESPACE);
    let unscheduled = watcher::Config::default().fields("spec.nodeName=,status.phase=Pending");
    let mut own_events = watcher(own.clone(), watcher::Config::default()).default_backoff().boxed();
    let mut waiting_events = watcher(Api::<Pod>::all(context.client.clone()), unscheduled).default_backoff().boxed();
    let (mut placeholders, mut waiting) = (WatchCache::<Placeholder>::default(), WatchCache::<WaitingPod>::default());
    let mut plan = PlaceholderPlan::default();
    let mut failures = FailureLog::default();
    loop {
        let is_changed = tokio::select! {
            () = stop.cancelled() => return,
            Some(event) = own_events.next() => match event {
                Ok(event) => placeholders.take(event, |pod| Some((pod.uid()?, placeholder(pod)))),
                Err(error) => say(&mut failures, "watch", &error.to_string()),
            },
            Some(event) = waiting_events.next() => match event {
                Ok(event) => waiting.take(event, |pod| Some((pod.uid()?, waiting_pod(pod)))),
                Err(error) => say(&mut failures, "watch", &error.to_string()),
            },
            Ok(()) = context.differences.changed() => true,
            Ok(()) = context.lent.changed() => true,
            () = context.clock.sleep(PLACEHOLDER_INTERVAL) => true,
        };
        if !is_changed || !placeholders.is_complete() || !waiting.is_complete() {
            continue;
        }
        let Some(leases) = context.lent.borrow_and_update().clone() else { continue };
        let unused = Arc::clone(&context.differences.borrow_and_update());
        let wanted = wanted_by_lease(waiting.facts(), &leases);
        let existing: Vec<&Placeholder> = placeholders.facts().collect();
        let changes = plan.changes(&unused.unused, &wanted, &existing, context.clock.elapsed());
        for surplus in changes.delete {
            let same = Preconditions { uid: Some(surplus.uid), resource_version: None };
            let now = DeleteParams::default().grace_period(0).preconditions(same);
            let deleted = within_limit(own.delete(&surplus.name, &now)).await;
            note(&mut failures, "delete a placeholder", deleted.map(drop));
        }
        for (lease, node) in changes.create {
            let Some(terms) = leases.get(&lease) else { continue };
            match placeholder_pod(lease, &node, terms, &context.image) {
                Ok(pod) => {
                    let made = within_limit(own.create(&PostParams::default(), &pod)).await;
                    note(&mut failures, "make a placeholder", made.map(drop));
                }
                Err(error) => drop(say(&mut failures, "make a placeholder", &error.to_string())),
            }
        }
    }
}

/// Removes placeholders of an agent that held GPUs before its configuration changed.
pub async fn clear(client: Client) {
    let own = Api::<Pod>::namespaced(client, PLACEHOLDER_NAMESPACE);
    // Without the rights of `deploy/agent/hold.yaml` there never were any.
    let Ok(left) = within_limit(own.list_metadata(&ListParams::default().labels(LEASE_LABEL))).await else { return };
    for pod in left.items {
        let deleted = within_limit(own.delete(&pod.name_any(), &DeleteParams::default().grace_period(0))).await;
        note(&mut FailureLog::default(), "delete a placeholder", deleted.map(drop));
    }
}

fn note(failures: &mut FailureLog, what: &str, result: Result<(), CallError>) {
    match result {
        Ok(()) => failures.cleared(what),
        Err(CallError::Status(status)) if matches!(status.code, 404 | 409) => {}
        Err(error) => {
            say(failures, what, &error.to_string());
        }
    }
}

/// Logs a failure once; false, because it changes nothing.
fn say(failures: &mut FailureLog, what: &str, error: &str) -> bool {
    if failures.is_new(what, error) {
        tracing::warn!(what, error, "leased GPUs may not be held; is deploy/agent/hold.yaml applied?");
    }
    false
}

/// GPUs that waiting pods need, by lease.
fn wanted_by_lease<'a>(
    waiting: impl Iterator<Item = &'a WaitingPod>,
    leases: &BTreeMap<LeaseId, LentLease>,
) -> BTreeMap<LeaseId, u64> {
    let mut wanted = BTreeMap::new();
    for pod in waiting {
        let of = |(id, lease): &(&LeaseId, &LentLease)| match lease.user() {
            Some(user) => pod.liqo_user.as_deref() == Some(user),
            None => pod.lease == Some(**id),
        };
        if let Some((id, lease)) = leases.iter().find(of) {
            *wanted.entry(*id).or_insert(0) += pod.requests.get(&lease.resource).copied().unwrap_or(0);
        }
    }
    wanted
}

fn waiting_pod(pod: &Pod) -> Option<WaitingPod> {
    let namespace = pod.namespace()?;
    let lease = namespace.strip_prefix("comity-").and_then(|lease| lease.parse().ok());
    let liqo_user = pod.labels().get(CREATOR_LABEL).cloned();
    let is_gated = pod.spec.as_ref()?.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    let is_of_a_lease =
        (lease.is_some() || liqo_user.is_some()) && !is_gated && pod.metadata.deletion_timestamp.is_none();
    is_of_a_lease.then(|| WaitingPod { lease, liqo_user, requests: effective_request(pod) })
}

fn placeholder(pod: &Pod) -> Option<Placeholder> {
    // One that is being deleted counts no more.
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let labels = pod.labels();
    Some(Placeholder {
        uid: pod.uid()?,
        name: pod.name_any(),
        lease: labels.get(LEASE_LABEL)?.parse().ok()?,
        node: pod.annotations().get(HELD_NODE)?.clone(),
        is_bound: pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()),
    })
}

fn placeholder_pod(lease: LeaseId, node: &str, terms: &LentLease, image: &str) -> Result<Pod, serde_json::Error> {
    let id = lease.to_string();
    let here = json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }] }]);
    serde_json::from_value(json!({
        "metadata": {
            "generateName": format!("{id}-"),
            "labels": own_labels([(LEASE_LABEL, id.as_str())]),
            "annotations": { HELD_NODE: node },
        },
        "spec": {
            "priorityClassName": PLACEHOLDER_PRIORITY,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 0,
            "affinity": { "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": here },
            } },
            // Nodes with GPUs may be reserved for pods that ask for them.
            "tolerations": [{ "operator": "Exists", "effect": "NoSchedule" }],
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65535, "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": "placeholder",
                "image": image,
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                "resources": { "limits": { terms.resource.clone(): "1" } },
            }],
        },
    }))
}
