//! The Comity broker: it matches requests with offers, keeps the ledger of what is lent, and carries the handshakes by
//! which clusters peer. Replicated by Raft.
//!
//! What this crate never does: touch a workload, read a secret it carries, or change the state anywhere but in
//! [`comity_core::State::apply`].
//!
//! ```text
//!   rpc ─▶ authorize ─▶ convert ─▶ context::mutate ─▶ group::propose ─▶ log ─▶ apply ─▶ watch ─▶ watchers, agents
//!                                                          ▲                     │
//!                                          tasks (leader): └── plan, expire, mark ◀ state
//! ```
//!
//! - [`app`]: wiring; [`Broker::start`] is all that `comity dev` and the tests need
//! - [`rpc`]: the services, one file each; [`convert`]: between the API and the core; [`authorize`]: who may call what
//! - [`group`], [`storage`], [`transport`]: consensus, disk, peers
//! - [`tasks`]: what the leader does by itself
//! - [`watch`]: changes for watchers; [`clusters_touched`]: for agents, at the pace of [`desired_pace`]
//! - [`provision`], [`config`], [`command_line`]: setting up and starting; [`rebuild`], [`recover`]: after a disk was
//!   lost

pub mod agent_streams;
pub mod app;
pub mod authorize;
pub mod caller;
pub mod clusters_touched;
pub mod command_line;
pub mod config;
pub mod context;
pub mod convert;
pub mod desired_pace;
pub mod errors;
pub mod group;
pub mod idempotency;
pub mod join_secret;
pub mod metrics;
pub mod paging;
pub mod provision;
pub mod rebuild;
pub mod recover;
mod remember_members;
pub mod renewal;
pub mod rpc;
pub mod server;
pub mod storage;
pub mod tasks;
pub mod transport;
pub mod watch;

pub use app::{Broker, Listeners, StartError};
pub use config::{Config, Settings};
