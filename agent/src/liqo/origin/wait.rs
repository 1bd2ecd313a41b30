//! Waiting for what Liqo does, by watches and never for ever; and writing its kinds.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::runtime::watcher::watch_object;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::delivery::DeliveryError;
use crate::delivery::call::{FIELD_MANAGER, call};

/// Pause after a watch broke, before it begins again.
const PAUSE: Duration = Duration::from_millis(200);

/// What a look at an object told.
pub(super) enum Seen<T> {
    /// What was waited for.
    Done(T),
    /// Still missing, in words for people.
    NotYet(String),
}

/// Looks at every state of an object until it is as wanted; `None` is an object that does not exist.
pub(super) async fn wait_for<K, T>(
    api: &Api<K>,
    name: &str,
    operation: &str,
    patience: Duration,
    mut look: impl FnMut(Option<&K>) -> Result<Seen<T>, DeliveryError>,
) -> Result<T, DeliveryError>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut missing = String::from("the API server has not told of it");
    let watching = async {
        loop {
            let mut states = pin!(watch_object(api.clone(), name));
            while let Some(state) = states.next().await {
                match state {
                    Ok(object) => match look(object.as_ref())? {
                        Seen::Done(found) => return Ok(found),
                        Seen::NotYet(what) => missing = what,
                    },
                    Err(error) => {
                        missing = error.to_string();
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    match tokio::time::timeout(patience, watching).await {
        Ok(result) => result,
        Err(_) => Err(DeliveryError::temporary(operation, format!("not done after {patience:?}: {missing}"))),
    }
}

/// Waits until an object of this name, or the one with this uid, is gone.
pub(super) async fn wait_gone<K>(api: &Api<K>, name: &str, what: &str, patience: Duration) -> Result<(), DeliveryError>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let operation = format!("wait for {what} {name} to be gone");
    wait_for(api, name, &operation, patience, |object| {
        Ok(match object {
            None => Seen::Done(()),
            Some(object) => {
                let finalizers = object.meta().finalizers.as_deref().unwrap_or_default().join(", ");
                Seen::NotYet(if finalizers.is_empty() {
                    "still there".to_owned()
                } else {
                    format!("held by {finalizers}")
                })
            }
        })
    })
    .await
}

/// Makes an object of one of Liqo's kinds, or sets the fields given here back.
pub(super) async fn apply_dynamic(
    api: &Api<DynamicObject>,
    object: &DynamicObject,
) -> Result<DynamicObject, DeliveryError> {
    let kind = object.types.as_ref().map(|types| types.kind.as_str()).unwrap_or_default();
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    call(&format!("apply {kind} {name}"), api.patch(name, &parameters, &Patch::Apply(object))).await
}
