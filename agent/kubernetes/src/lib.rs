//! The Kubernetes API as all parts of the agent use it: the connection, calls, watches, quantities and names.
//!
//! `api` connects and rotates credentials, `call` gives every call a deadline and an error, `watch_cache` keeps what a
//! watch delivers. Nothing here knows what a lease is for.

pub mod api;
pub mod call;
pub mod dynamic_resources;
pub mod failure_log;
pub mod gpu_resource;
pub mod guest_egress;
pub mod hami;
pub mod https_server;
pub mod leader_lease;
pub mod object_content;
pub mod object_events;
pub mod own_pods;
pub mod pod_request;
pub mod pod_resources;
pub mod service_name;
pub mod token_review;
pub mod void_devices;
pub mod watch_cache;
