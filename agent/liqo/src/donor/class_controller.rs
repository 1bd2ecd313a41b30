//! Keeps the status of every replicated ResourceSlice equal to its lease's grant, or empty.
//!
//! Repeated changes by others are reset with backoff; meanwhile the admission policies prevent writes by consumers.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::call::creating;
use futures::{Stream, StreamExt as _};
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;
use tokio::time::Instant;

use super::grants::Grants;
use super::pace::Pace;
use super::slice::status_to_write;
use crate::resource_slice;

/// Liqo's label of objects replicated from another cluster.
pub(crate) const REPLICATED: &str = "liqo.io/replicated=true";
/// Most slices that are managed: there cannot be more leases.
const MAX_SLICES: usize = 10 * super::grants::MAX_GRANTS;

/// The class controller of class `comity`.
#[derive(Debug)]
pub struct ClassController;

struct Slice {
    object: DynamicObject,
    pace: Pace,
    /// Whether its status must be checked.
    due: bool,
}

impl ClassController {
    /// Runs until the grants' sender is gone. The grants must be complete from the start: slices without one are set to
    /// zero.
    pub async fn run(client: Client, mut grants: watch::Receiver<Arc<Grants>>) {
        let kind = resource_slice();
        let all = Api::<DynamicObject>::all_with(client.clone(), &kind);
        let events = watcher::watcher(all, watcher::Config::default().labels(REPLICATED)).default_backoff();
        let mut events = std::pin::pin!(events);
        let mut slices = BTreeMap::new();
        loop {
            let next = slices.values().filter(|slice: &&Slice| slice.due).map(|slice| slice.pace.due()).min();
            tokio::select! {
                event = events.next() => match event {
                    Some(event) => take(&mut slices, event),
                    None => return,
                },
                changed = grants.changed() => match changed {
                    Ok(()) => slices.values_mut().for_each(|slice| slice.due = true),
                    Err(_) => return,
                },
                () = until(next.flatten()), if next.is_some() => {
                    let now = Arc::clone(&grants.borrow());
                    settle(&client, &mut slices, &now).await;
                }
            }
            drain_ready(&mut events, &mut slices).await;
        }
    }
}

async fn until(due: Option<Instant>) {
    if let Some(due) = due {
        tokio::time::sleep_until(due).await;
    }
}

/// Applies all pending events, so that one round handles a burst of them.
async fn drain_ready<S>(events: &mut S, slices: &mut BTreeMap<String, Slice>)
where
    S: Stream<Item = watcher::Result<Event<DynamicObject>>> + Unpin,
{
    while let Some(Some(event)) = futures::FutureExt::now_or_never(events.next()) {
        take(slices, event);
        tokio::task::consume_budget().await;
    }
}

fn take(slices: &mut BTreeMap<String, Slice>, event: watcher::Result<Event<DynamicObject>>) {
    match event {
        // The next write of an object that is missing from the new list finds that it is gone.
        Ok(Event::Init | Event::InitDone) => {}
        Ok(Event::InitApply(object) | Event::Apply(object)) => {
            let key = key(&object);
            if slices.len() >= MAX_SLICES && !slices.contains_key(&key) {
                tracing::error!(slice = key, MAX_SLICES, "too many ResourceSlices; this one is granted nothing");
                return;
            }
            let pace = slices.remove(&key).map(|slice| slice.pace).unwrap_or_default();
            slices.insert(key, Slice { object, pace, due: true });
        }
        Ok(Event::Delete(object)) => {
            slices.remove(&key(&object));
        }
        Err(error) => {
            tracing::warn!(%error, "the watch of ResourceSlices failed and is begun again; is Liqo installed, and \
                deploy/agent/liqo-donor.yaml applied?");
        }
    }
}

fn key(object: &DynamicObject) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

/// Writes what is due now.
async fn settle(client: &Client, slices: &mut BTreeMap<String, Slice>, grants: &Grants) {
    let now = Instant::now();
    let mut gone = Vec::new();
    for (key, slice) in
        slices.iter_mut().filter(|(_, slice)| slice.due && slice.pace.due().is_none_or(|due| due <= now))
    {
        slice.due = false;
        let Some(status) = status_to_write(&slice.object, grants, &rfc3339(Timestamp::now())) else { continue };
        slice.pace.attempt(now);
        let mut wanted = slice.object.clone();
        wanted.data["status"] = status;
        match write(client, &wanted).await {
            Ok(written) => {
                tracing::info!(slice = key, accepted = is_accepted(&written), "wrote what the slice is granted");
                slice.object = written;
            }
            Err(CallError::Status(status)) if status.is_not_found() => gone.push(key.clone()),
            // Somebody else wrote it in the meantime; the watch delivers the new version, or the next round reads it.
            Err(error) => {
                tracing::debug!(slice = key, %error, "could not write what the slice is granted; it is tried again");
                slice.due = true;
                refresh(client, slice).await;
            }
        }
    }
    for key in gone {
        slices.remove(&key);
    }
}

async fn write(client: &Client, slice: &DynamicObject) -> Result<DynamicObject, CallError> {
    let api = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        &slice.namespace().unwrap_or_default(),
        &resource_slice(),
    );
    let parameters = creating();
    within_limit(api.replace_status(&slice.name_any(), &parameters, slice)).await
}

async fn refresh(client: &Client, slice: &mut Slice) {
    let namespace = slice.object.namespace().unwrap_or_default();
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &resource_slice());
    if let Ok(object) = within_limit(api.get(&slice.object.name_any())).await {
        slice.object = object;
    }
}

fn is_accepted(slice: &DynamicObject) -> bool {
    let conditions = slice.data.pointer("/status/conditions").and_then(serde_json::Value::as_array);
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Resources" && one["status"] == "Accepted"))
}

/// Whole seconds, as Kubernetes writes times.
fn rfc3339(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
