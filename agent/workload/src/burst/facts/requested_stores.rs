//! Checkpoint stores that requests of people name for the pods of their namespaces.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use crate::burst::CHECKPOINT_SECRET;
use crate::burst::checkpoint_store::checkpoint_secret;

/// The Secrets by namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedStores(BTreeMap<String, BTreeSet<String>>);

/// The checkpoint store of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreOfPod<'a> {
    /// Neither the pod nor a request of its namespace names one, or the pod's name for it is invalid.
    None,
    /// The pod's annotation names this Secret.
    Own(&'a str),
    /// All requests of its namespace that name one name this Secret.
    Requested(&'a str),
    /// Requests name several: the pod must choose.
    Several(&'a BTreeSet<String>),
}

impl RequestedStores {
    /// The store of a pod in this namespace: its own, or that of requests.
    pub(crate) fn of_pod<'a>(&'a self, pod: &'a Pod, namespace: &str) -> StoreOfPod<'a> {
        let annotations = pod.metadata.annotations.as_ref();
        if let Some(annotations) = annotations.filter(|annotations| annotations.contains_key(CHECKPOINT_SECRET)) {
            return checkpoint_secret(annotations).ok().flatten().map_or(StoreOfPod::None, StoreOfPod::Own);
        }
        let Some(secrets) = self.0.get(namespace) else { return StoreOfPod::None };
        match (secrets.first(), secrets.len()) {
            (None, _) => StoreOfPod::None,
            (Some(secret), 1) => StoreOfPod::Requested(secret),
            (Some(_), _) => StoreOfPod::Several(secrets),
        }
    }
}

/// Pairs of a request's namespace and Secret.
impl<'a> FromIterator<(&'a str, &'a str)> for RequestedStores {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(requests: I) -> Self {
        let mut stores = BTreeMap::<String, BTreeSet<String>>::new();
        for (namespace, secret) in requests {
            stores.entry(namespace.to_owned()).or_default().insert(secret.to_owned());
        }
        Self(stores)
    }
}
