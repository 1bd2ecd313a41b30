//! One in-process broker with mutual TLS and an on-disk log, tested through its API.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "broker/any_client.rs"]
mod any_client;
#[path = "broker/audit.rs"]
mod audit;
#[path = "broker/audit_export.rs"]
mod audit_export;
#[path = "broker/authority_rotation.rs"]
mod authority_rotation;
#[path = "broker/bad_input.rs"]
mod bad_input;
#[path = "broker/cluster_requests.rs"]
mod cluster_requests;
#[path = "broker/default_deny.rs"]
mod default_deny;
#[path = "broker/fake_agent.rs"]
mod fake_agent;
#[path = "broker/federation.rs"]
mod federation;
#[path = "broker/floods.rs"]
mod floods;
#[allow(dead_code, reason = "the tests of the fetch use the rest")]
#[path = "../src/policy_source/tests/git_server.rs"]
mod git_server;
#[path = "broker/joins.rs"]
mod joins;
#[path = "broker/lease_story.rs"]
mod lease_story;
#[path = "broker/lists_and_watches.rs"]
mod lists_and_watches;
#[path = "broker/open_port.rs"]
mod open_port;
#[path = "broker/policy_artifacts.rs"]
mod policy_artifacts;
#[path = "broker/policy_pulls.rs"]
mod policy_pulls;
#[path = "broker/quotas.rs"]
mod quotas;
#[path = "broker/reclaim_story.rs"]
mod reclaim_story;
#[allow(dead_code, reason = "the tests of artifacts use the rest")]
#[path = "../src/policy_source/tests/registry_server.rs"]
mod registry_server;
#[path = "broker/reservations.rs"]
mod reservations;
#[path = "broker/revocations.rs"]
mod revocations;
#[path = "broker/role_matrix.rs"]
mod role_matrix;
#[path = "broker/templates.rs"]
mod templates;
#[path = "../src/policy_source/tests/tls_server.rs"]
mod tls_server;
