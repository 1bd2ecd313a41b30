//! The commands, one file per noun: arguments, calls to the broker, output.

pub mod cluster;
pub mod completions;
pub mod lease;
pub mod man;
pub mod offers;
pub mod peering;
pub mod policy;
pub mod quote;
pub mod raft;
pub mod request;
pub mod version;
