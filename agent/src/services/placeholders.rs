//! Holds leased GPUs that no pod of the lease uses yet against the donor's own pods (`sharing.hold`).
//!
//! A placeholder pod requests one unit of the lease's resource on a node of the lease. It has the priority of pods
//! without a PriorityClass, so these do not preempt it, and gives way at once: while a pod of the lease waits for the
//! scheduler, this task deletes as many placeholders as the pod needs GPUs.
//!
//! It holds against pods of priority 0 or less that come later. It does not hold against pods of higher priority, pods
//! that are bound by hand, and, for the moment in which it gives way, the donor's own pods that wait for the same GPU: if
//! one of them wins, the broker sees local use and calls the lease back. It holds no devices of DRA drivers: only a pod in
//! the lease's namespace can use the lease's claims.

mod placeholder_plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::call::own_labels;
use comity_agent_kubernetes::hami::{HamiShare, hami_additions};
use comity_agent_kubernetes::own_pods::{OwnPods, restricted_spec};
use comity_agent_kubernetes::pod_request::effective_request;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_liqo::CREATOR_LABEL;
use comity_agent_model::lease::lease_id::{LEASE_LABEL, namespace_name};
use comity_agent_model::lent::{LentLease, LentLeases, PodsOf};
use comity_runtime::Clock;
use comity_types::LeaseId;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
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
    let mut own = OwnPods::new(context.client.clone(), PLACEHOLDER_NAMESPACE, "leased GPUs may not be held");
    let unscheduled = watcher::Config::default().fields("spec.nodeName=,status.phase=Pending");
    let mut own_events = own.events();
    let mut waiting_events = watcher(Api::<Pod>::all(context.client.clone()), unscheduled).default_backoff().boxed();
    let (mut placeholders, mut waiting) = (WatchCache::<Placeholder>::default(), WatchCache::<WaitingPod>::default());
    let mut plan = PlaceholderPlan::default();
    loop {
        let is_changed = tokio::select! {
            () = stop.cancelled() => return,
            Some(event) = own_events.next() => match event {
                Ok(event) => placeholders.take(event, |pod| Some((pod.uid()?, placeholder(pod)))),
                Err(error) => {
                    own.failed("watch placeholders", &error.to_string());
                    false
                }
            },
            Some(event) = waiting_events.next() => match event {
                Ok(event) => waiting.take(event, |pod| Some((pod.uid()?, waiting_pod(pod)))),
                Err(error) => {
                    own.failed("watch waiting pods", &error.to_string());
                    false
                }
            },
            Ok(()) = context.differences.changed() => true,
            Ok(()) = context.lent.changed() => true,
            () = context.clock.sleep(PLACEHOLDER_INTERVAL) => true,
        };
        if !is_changed || !placeholders.is_complete() || !waiting.is_complete() {
            continue;
        }
        let Some(leases) = context.lent.borrow_and_update().clone() else { continue };
        let differences = Arc::clone(&context.differences.borrow_and_update());
        let wanted = wanted_by_lease(waiting.facts(), &leases);
        let existing: Vec<&Placeholder> = placeholders.facts().collect();
        let changes = plan.changes(differences.unused.as_ref(), &wanted, &existing, context.clock.elapsed());
        for surplus in changes.delete {
            own.delete(&surplus.name, &surplus.uid).await;
        }
        let shares = hami_shares(&context.client, &changes.create, &leases, &mut own).await;
        for (lease, node) in changes.create {
            let (Some(terms), Some(share)) = (leases.get(&lease), shares.get(&lease)) else { continue };
            own.make(placeholder_pod(lease, &node, terms, share.as_ref(), &context.image)).await;
        }
    }
}

/// The limits of a share of each lease for which placeholders are missing; `None` where HAMi shares nothing. A lease
/// whose limits cannot be read is absent: without them HAMi would give a placeholder a whole GPU.
async fn hami_shares(
    client: &Client,
    missing: &[(LeaseId, String)],
    leases: &BTreeMap<LeaseId, LentLease>,
    own: &mut OwnPods,
) -> BTreeMap<LeaseId, Option<HamiShare>> {
    const WHAT: &str = "read the limits of a lease";
    let namespaces = Api::<Namespace>::all(client.clone());
    let mut shares = BTreeMap::new();
    for lease in missing.iter().map(|(lease, _)| *lease).collect::<BTreeSet<LeaseId>>() {
        // Only a lease's namespace has such limits: on a virtual node HAMi's devices are lent whole.
        let has_namespace = leases.get(&lease).is_some_and(|terms| terms.pods == PodsOf::Namespace);
        if !has_namespace {
            shares.insert(lease, None);
            continue;
        }
        match within_limit(namespaces.get_metadata(&namespace_name(lease))).await {
            Ok(namespace) => drop(shares.insert(lease, HamiShare::of_namespace(namespace.annotations()))),
            Err(error) => own.note(WHAT, Err(error)),
        }
    }
    shares
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

fn placeholder_pod(
    lease: LeaseId,
    node: &str,
    terms: &LentLease,
    share: Option<&HamiShare>,
    image: &str,
) -> Result<Pod, serde_json::Error> {
    let id = lease.to_string();
    let limits = json!({ terms.resource.clone(): "1" });
    let mut spec =
        restricted_spec(node, json!({ "name": "placeholder", "image": image, "resources": { "limits": limits } }));
    spec["priorityClassName"] = json!(PLACEHOLDER_PRIORITY);
    // Nodes with GPUs may be reserved for pods that ask for them.
    spec["tolerations"] = json!([{ "operator": "Exists", "effect": "NoSchedule" }]);
    let mut pod = serde_json::from_value(json!({
        "metadata": {
            "generateName": format!("{id}-"),
            "labels": own_labels([(LEASE_LABEL, id.as_str())]),
            "annotations": { HELD_NODE: node },
        },
        "spec": spec,
    }))?;
    if let Some(share) = share {
        hami_additions(share, &mut pod);
    }
    Ok(pod)
}
