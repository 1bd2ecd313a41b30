//! Checks of a host and its configuration, each with a remedy.
//!
//! `comity-agent join` makes them before it spends its single-use token, `comity-agent doctor` at any time.

mod agent_checks;
mod capacity;
mod check_agent;
mod check_brokers;
mod check_certificate;
mod check_configuration;
mod check_gpus;
mod check_inventory;
mod check_kubernetes;
mod check_membership;
mod check_network_policies;
mod check_policies;
mod check_rights;
mod check_runtime_class;
mod check_site;
mod check_state_directory;
mod check_token;
mod check_udp;
mod check_webhook;
mod join_checks;

pub use agent_checks::check_agent_host;
pub use check_gpus::check_found_gpus;
pub use join_checks::{JoinChecks, Skippable};
