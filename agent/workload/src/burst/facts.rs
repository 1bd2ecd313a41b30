//! The facts that burst reads from pods and namespaces.

pub(crate) mod demand;
#[cfg(test)]
mod fuzz_pods;
pub(crate) mod namespace;
pub(crate) mod offload;
pub(crate) mod pod;
pub(crate) mod pod_options;
pub(crate) mod requested_stores;
