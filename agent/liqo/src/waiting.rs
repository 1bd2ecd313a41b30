//! Waits for controllers by watches, with a time limit.
//!
//! `kube::runtime::wait::await_condition` is no substitute: it ends at the first error of the watch, and does not
//! report what is still missing when the time is over.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use comity_agent_model::delivery_error::DeliveryError;
use futures::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

/// Hint of waits for Liqo's controller manager.
pub(super) const CONTROLLER_HINT: &str = "is liqo-controller-manager running?";

/// Result of a check of an object.
pub(super) enum Progress<T> {
    /// The condition holds.
    Done(T),
    /// Still missing, in words for people.
    NotYet(String),
}

impl<T> Progress<T> {
    /// Done once something is found.
    pub(super) fn of(found: Option<T>, missing: &str) -> Self {
        found.map_or_else(|| Self::NotYet(missing.to_owned()), Self::Done)
    }
}

/// A wait, with its time limit.
pub(super) struct Waiting<'a> {
    /// As in "wait for the nonce".
    pub(super) operation: &'a str,
    /// Hint for the case that it does not come; empty if the missing object suffices.
    pub(super) hint: &'a str,
    /// How long.
    pub(super) patience: Duration,
}

impl Waiting<'_> {
    /// Waits until `check` is done with the object of this name, or fails; it gets `None` while there is none.
    pub(super) async fn until<K, T>(
        &self,
        api: &Api<K>,
        name: &str,
        mut check: impl FnMut(Option<&K>) -> Result<Progress<T>, DeliveryError>,
    ) -> Result<T, DeliveryError>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut states = std::pin::pin!(watcher::watch_object(api.clone(), name).default_backoff());
        let mut missing = NOT_OBSERVED.to_owned();
        let wait = async {
            while let Some(state) = states.next().await {
                match state {
                    Ok(object) => match check(object.as_ref())? {
                        Progress::Done(found) => return Ok(found),
                        Progress::NotYet(what) => missing = what,
                    },
                    Err(error) => missing = format!("the API server says: {error}"),
                }
            }
            std::future::pending().await
        };
        let result = tokio::time::timeout(self.patience, wait).await;
        result.unwrap_or_else(|_| Err(self.too_long(&missing)))
    }

    /// Waits until the object of this name is gone; with `uid`, another object of that name counts as gone.
    pub(super) async fn gone<K>(&self, api: &Api<K>, name: &str, uid: Option<String>) -> Result<(), DeliveryError>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        self.until(api, name, |object| {
            Ok(match object {
                None => Progress::Done(()),
                Some(other) if uid.is_some() && other.uid() != uid => Progress::Done(()),
                Some(object) => Progress::NotYet(match object.finalizers().join(", ").as_str() {
                    "" => "still there".to_owned(),
                    finalizers => format!("held by {finalizers}"),
                }),
            })
        })
        .await
    }

    /// Waits until nothing of this selection is left.
    pub(super) async fn none_left<K>(&self, api: Api<K>, labels: &str) -> Result<(), DeliveryError>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let events = watcher::watcher(api, watcher::Config::default().labels(labels)).default_backoff();
        let mut left = BTreeSet::new();
        let wait = emptied(events, &mut left);
        match tokio::time::timeout(self.patience, wait).await {
            Ok(()) => Ok(()),
            Err(_) => {
                let names = left.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
                Err(self.too_long(&if names.is_empty() {
                    NOT_OBSERVED.to_owned()
                } else {
                    format!("still there: {names}")
                }))
            }
        }
    }

    fn too_long(&self, missing: &str) -> DeliveryError {
        let mut reason = format!("not done after {:?}: {missing}", self.patience);
        if !self.hint.is_empty() {
            reason = format!("{reason}; {}", self.hint);
        }
        DeliveryError::temporary(self.operation, reason)
    }
}

/// The error before the first observation.
const NOT_OBSERVED: &str = "the API server has not shown it yet";

async fn emptied<K>(events: impl Stream<Item = watcher::Result<Event<K>>>, left: &mut BTreeSet<String>)
where
    K: Resource,
{
    let key = |object: &K| match object.meta().namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{}", object.meta().name.as_deref().unwrap_or_default()),
        None => object.meta().name.clone().unwrap_or_default(),
    };
    let mut events = std::pin::pin!(events);
    let mut listed = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => {
                listed = false;
                left.clear();
            }
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                left.insert(key(&object));
            }
            Ok(Event::InitDone) => listed = true,
            Ok(Event::Delete(object)) => {
                left.remove(&key(&object));
            }
            Err(error) => tracing::debug!(%error, "a watch failed and restarts"),
        }
        if listed && left.is_empty() {
            return;
        }
    }
    std::future::pending().await
}
