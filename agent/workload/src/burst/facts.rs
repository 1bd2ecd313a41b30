//! The facts that burst reads from pods and namespaces.

pub(super) mod demand;
#[cfg(test)]
mod fuzz_pods;
pub(super) mod namespace;
pub(super) mod offload;
pub(crate) mod pod;
pub(super) mod pod_options;
pub(crate) mod requested_stores;
