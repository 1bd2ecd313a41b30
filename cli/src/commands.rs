//! The commands, one file per noun: arguments, calls to the broker, output.

pub mod audit;
pub mod cluster;
pub mod completions;
pub mod context;
pub mod doctor;
pub mod institution;
pub mod invitation;
pub mod lease;
pub mod login;
pub mod man;
pub mod offers;
pub mod peering;
pub mod policy;
pub mod raft;
pub mod request;
pub mod status;
pub mod top;
pub mod user;
pub mod version;
pub mod whoami;
