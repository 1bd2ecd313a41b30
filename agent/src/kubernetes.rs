//! The Kubernetes API as all parts of the agent use it: the connection, calls, watches, quantities and names.

pub mod api;
pub(crate) mod call;
pub(crate) mod dns_label;
pub(crate) mod failure_log;
pub(crate) mod gpu_resource;
pub(crate) mod https_server;
pub(crate) mod pod_request;
pub mod service_name;
pub(crate) mod watch_cache;

pub(crate) use comity_policy::quantity;
