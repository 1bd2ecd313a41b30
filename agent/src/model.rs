//! Types and limits that several parts of the agent share; nothing here does I/O.

pub mod delivery_error;
pub mod desired;
pub mod lease_id;
pub mod local_policy;
pub mod node_id;
pub mod settings;
pub mod side;
