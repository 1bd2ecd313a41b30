//! The API for users and agents, as gRPC and as JSON over HTTP: services, authorization, conversion between messages
//! and the core's types.

pub mod agent_streams;
pub mod authorize;
pub mod caller;
pub mod caller_life;
pub mod convert;
pub mod error_answer;
pub mod http;
pub mod idempotency;
pub mod invitation;
pub mod join_secret;
pub mod paging;
pub mod rpc;
pub mod rpc_error;
pub mod server;
pub mod shares;
pub mod udp_probe;
pub mod viewer;
pub mod visible_names;
