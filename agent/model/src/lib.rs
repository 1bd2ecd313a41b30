//! Types and limits that the agent's crates share.
//!
//! Nothing here calls a broker or a cluster; the only I/O is for the salt of node ids and the time since boot. It
//! depends on no other crate of the agent.

pub mod api_port;
pub mod boot_time;
pub mod delivery_error;
pub mod desired;
pub mod desired_state;
pub mod envelope;
pub mod forward_target;
pub mod gpu_demand;
pub mod guest_labels;
pub mod lease;
pub mod lent;
pub mod local_policy;
pub mod node_id;
pub mod node_service;
pub mod nodes;
pub mod object_id;
pub mod peering;
pub mod settings;
pub mod status_reasons;
