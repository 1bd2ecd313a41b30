//! Finds a pod, and writes it.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::Site;
use crate::answers::{Caller, Refusal};
use crate::pod_book::{PodEntry, PodKey};

/// A pod of the caller.
pub(super) fn find(site: &Site, caller: &Caller, namespace: &str, name: &str) -> Result<(PodKey, PodEntry), Refusal> {
    caller.check(namespace)?;
    let key = PodKey { lease: caller.lease, name: name.to_owned() };
    let entry = site.host()?.book.entry(&key).ok_or_else(|| Refusal::not_found("pods", name))?;
    Ok((key, entry))
}

/// A pod as the API writes it.
pub(super) fn as_object(pod: &Pod) -> Value {
    // Only maps with keys other than strings cannot be written.
    serde_json::to_value(pod).unwrap_or_default()
}
