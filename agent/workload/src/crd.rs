//! `GpuRequest` and `GpuLease`: Comity's API for users of kubectl and GitOps.
//!
//! A `GpuRequest` in a namespace of the origin becomes a request at the broker, and its status follows it. A `GpuLease`
//! mirrors a lease, on both sides, and is only ever written by the agent. The YAML in `deploy/crds` is made from these
//! types by `cargo run -p comity-agent --example crds`.

mod condition;
mod controller;
mod controller_state;
mod copies;
mod gpu_lease;
mod gpu_request;
mod lease_keeper;
mod lease_mirror;
mod reconcile;
mod remarks;
mod request_options;
mod write;
mod write_error;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

pub use condition::Condition;
pub(crate) use condition::{ConditionStatus, condition, conditions, time};
pub use controller::Controller;
pub(crate) use controller::{follow, key, namespace};
pub use gpu_lease::{GpuLease, GpuLeaseSpec, GpuLeaseStatus, Side};
pub use gpu_request::{DeliveryKind, GpuRequest, GpuRequestSpec, GpuRequestStatus};
pub use request_options::{DataNeed, Isolation, Members, Numa, NvLink, Preemptible, Topology, Window};

/// Keeps a `GpuRequest` until its request is cancelled.
pub const FINALIZER: &str = "comity.dev/request";

/// The definitions, with the names of their files.
#[must_use]
pub fn definitions() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![("gpurequests.yaml", GpuRequest::crd()), ("gpuleases.yaml", GpuLease::crd())]
}

/// The content of a definition's file.
///
/// # Errors
/// The error of the YAML writer.
pub fn yaml(definition: &CustomResourceDefinition) -> Result<String, serde_saphyr::ser::Error> {
    let text = serde_saphyr::to_string(definition)?;
    Ok(format!("# Made from the agent's types: cargo run -p comity-agent --example crds\n{text}"))
}

/// "PolicyDenied" for "policy-denied".
fn camel(code: &str) -> String {
    let mut text = String::new();
    for word in code.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        let mut letters = word.chars();
        text.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        text.push_str(letters.as_str());
    }
    if text.is_empty() { "Refused".to_owned() } else { text }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_up_to_date() {
        for (name, definition) in definitions() {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds").join(name);
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(found, yaml(&definition).unwrap(), "{name}: run cargo run -p comity-agent --example crds");
        }
    }
}
