//! The commands, one noun a file: its arguments, its calls, what it prints.

pub mod cluster;
pub mod completions;
pub mod lease;
pub mod offers;
pub mod peering;
pub mod policy;
pub mod quote;
pub mod raft;
pub mod request;
pub mod version;
