//! A host without Kubernetes lends: the API of its leases, and their pods in real containers of podman.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

#[path = "site/guests.rs"]
mod guests;
#[path = "site/host_under_test.rs"]
mod host_under_test;
#[path = "site/kubectl.rs"]
mod kubectl;
#[path = "site/lease_api.rs"]
mod lease_api;
#[path = "site/pods.rs"]
mod pods;
