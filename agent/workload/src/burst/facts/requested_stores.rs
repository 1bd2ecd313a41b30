//! Checkpoint stores that requests of people name for the pods of their namespaces.

use std::collections::{BTreeMap, BTreeSet};

/// The Secrets by namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedStores(BTreeMap<String, BTreeSet<String>>);

/// The store of a pod that names none itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreOfPod<'a> {
    /// No request of its namespace names one.
    None,
    /// All requests that name one name this Secret.
    One(&'a str),
    /// Requests name several: the pod must choose.
    Several(&'a BTreeSet<String>),
}

impl RequestedStores {
    /// The store of a pod in this namespace.
    pub(crate) fn of_pod_in(&self, namespace: &str) -> StoreOfPod<'_> {
        let Some(secrets) = self.0.get(namespace) else { return StoreOfPod::None };
        match (secrets.first(), secrets.len()) {
            (None, _) => StoreOfPod::None,
            (Some(secret), 1) => StoreOfPod::One(secret),
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
