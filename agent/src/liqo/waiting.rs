//! Waits for what controllers do, by watches, and never without an end.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use crate::delivery::DeliveryError;

/// What is waited for, and how long.
pub(crate) struct Waiting<'a> {
    /// As in "wait for the nonce".
    pub(crate) operation: &'a str,
    /// What to look at if it does not come.
    pub(crate) hint: &'a str,
    /// How long.
    pub(crate) patience: Duration,
}

impl Waiting<'_> {
    /// Until `found` gives something for the object of this name; it gets `None` while there is none.
    pub(crate) async fn until<K, T>(
        &self,
        api: Api<K>,
        name: &str,
        mut found: impl FnMut(Option<&K>) -> Option<T>,
    ) -> Result<T, DeliveryError>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut states = std::pin::pin!(watcher::watch_object(api, name));
        let mut last_error = None;
        let wait = async {
            while let Some(state) = states.next().await {
                match state {
                    Ok(object) => match found(object.as_ref()) {
                        Some(answer) => return answer,
                        None => last_error = None,
                    },
                    Err(error) => {
                        last_error = Some(error.to_string());
                        tokio::time::sleep(RETRY).await;
                    }
                }
            }
            std::future::pending().await
        };
        let result = tokio::time::timeout(self.patience, wait).await;
        result.map_err(|_| self.too_long(last_error.as_deref(), ""))
    }

    /// Until the object of this name, or its like of the same uid, is gone.
    pub(crate) async fn gone<K>(&self, api: Api<K>, name: &str, uid: Option<String>) -> Result<(), DeliveryError>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        self.until(api, name, |object| match object {
            None => Some(()),
            Some(other) if uid.is_some() && other.uid() != uid => Some(()),
            Some(_) => None,
        })
        .await
    }

    /// Until nothing of this selection is left.
    pub(crate) async fn none_left<K>(&self, api: Api<K>, labels: &str) -> Result<(), DeliveryError>
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
                Err(self.too_long(None, &names))
            }
        }
    }

    fn too_long(&self, error: Option<&str>, left: &str) -> DeliveryError {
        let mut reason = format!("not done after {} s", self.patience.as_secs());
        if !left.is_empty() {
            reason = format!("{reason}, still there: {left}");
        }
        if let Some(error) = error {
            reason = format!("{reason}; the API server says: {error}");
        }
        DeliveryError::temporary(self.operation, format!("{reason}; {}", self.hint))
    }
}

/// Pause after a failed watch.
const RETRY: Duration = Duration::from_millis(500);

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
            Err(error) => tracing::debug!(%error, "a watch failed and is begun again"),
        }
        if listed && left.is_empty() {
            return;
        }
    }
    std::future::pending().await
}
