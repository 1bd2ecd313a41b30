//! Tasks that run beside the reconcile loop as long as the agent does.

pub mod canary;
pub mod device_conflicts;
pub mod device_reader;
pub mod drift;
pub mod lending;
pub mod local_api;
pub(crate) mod measured;
pub mod node_service;
pub mod nodes;
pub mod placeholders;
pub(crate) mod policy_follower;
pub mod reach;
pub mod remapped_addresses;
pub mod webhook_registrations;
