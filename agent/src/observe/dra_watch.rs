//! Watches ResourceSlices and ResourceClaims, if the cluster has dynamic resource allocation.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::dynamic_resources::{ClaimFacts, DRA_GROUP, DRA_VERSION, SliceFacts};
use comity_agent_kubernetes::failure_log::FailureLog;
use comity_agent_kubernetes::watch_cache::WatchCache;
use futures::StreamExt as _;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use super::dra_devices::DraDevices;

/// How often the API group and the right to read it are checked.
const GROUP_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// `None` until it is known whether there are any.
pub(crate) type Published = Option<Arc<DraDevices>>;

/// Publishes all devices and claims whenever one changes. Ends with the receiver.
pub(crate) async fn follow(client: Client, publish: watch::Sender<Published>) {
    let mut failures = FailureLog::default();
    while !publish.is_closed() {
        match client.list_api_group_resources(&format!("{DRA_GROUP}/{DRA_VERSION}")).await {
            Ok(list) if list.resources.iter().any(|resource| resource.name == "resourceslices") => {
                let Some(error) = watch_all(&client, &publish).await else { return };
                // By its text: the resources are refused one at a time.
                if failures.is_new(&error.to_string(), "") {
                    tracing::info!(%error, "ResourceSlices and ResourceClaims cannot be read; if a DRA driver \
                        publishes GPUs here, apply deploy/agent/dra.yaml");
                }
            }
            // Kubernetes before 1.34, or turned off.
            Ok(_) | Err(kube::Error::Api(_)) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot check whether the cluster has dynamic resource allocation");
                tokio::time::sleep(GROUP_CHECK_INTERVAL / 60).await;
                continue;
            }
        }
        // Known objects are kept.
        publish.send_if_modified(|known| known.is_none() && known.replace(Arc::default()).is_none());
        tokio::time::sleep(GROUP_CHECK_INTERVAL).await;
    }
}

/// Watches until the API server refuses that, and returns the error; `None` when the receiver is gone.
async fn watch_all(client: &Client, publish: &watch::Sender<Published>) -> Option<kube::Error> {
    let all = watcher::Config::default;
    let mut slice_events = pin!(watcher(Api::<ResourceSlice>::all(client.clone()), all()).default_backoff());
    let mut claim_events = pin!(watcher(Api::<ResourceClaim>::all(client.clone()), all()).default_backoff());
    let (mut slices, mut claims) = (WatchCache::default(), WatchCache::default());
    let mut devices = DraDevices::default();
    loop {
        let taken = tokio::select! {
            Some(event) = slice_events.next() => event.map(|event| slices.take(event, slice_entry)),
            Some(event) = claim_events.next() => event.map(|event| claims.take(event, claim_entry)),
            else => return None,
        };
        match taken {
            Ok(true) if slices.is_complete() && claims.is_complete() => {
                devices.pools.update(slices.facts());
                devices.claims = claims.facts().cloned().collect();
                if publish.send(Some(Arc::new(devices.clone()))).is_err() {
                    return None;
                }
            }
            Ok(_) => {}
            Err(watcher::Error::InitialListFailed(error @ kube::Error::Api(_))) => return Some(error),
            Err(error) => tracing::debug!(%error, "the watch of ResourceSlices or ResourceClaims broke; it restarts"),
        }
    }
}

fn slice_entry(slice: &ResourceSlice) -> Option<(String, Option<SliceFacts>)> {
    Some((slice.metadata.name.clone()?, SliceFacts::of(slice)))
}

fn claim_entry(claim: &ResourceClaim) -> Option<(String, Option<ClaimFacts>)> {
    let key = format!("{}/{}", claim.metadata.namespace.as_deref()?, claim.metadata.name.as_deref()?);
    Some((key, ClaimFacts::of(claim)))
}
