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
//! - [`api`]: the services, one file each; conversion and authorization
//! - [`replication`], [`group`], [`storage`], [`transport`]: what is replicated; consensus, disk, peers
//! - [`tasks`]: what the leader does by itself
//! - [`watch`]: state changes for watchers and agents
//! - [`provision`], [`config`], [`command_line`]: setting up and starting; [`disaster_recovery`]: after disks were lost

pub mod api;
pub mod app;
pub mod command_line;
pub mod config;
pub mod context;
pub mod disaster_recovery;
pub mod group;
pub mod metrics;
pub mod provision;
pub mod renewal;
pub mod replication;
pub mod storage;
pub mod tasks;
pub mod transport;
pub mod watch;

pub use app::{Broker, Listeners, StartError};
pub use config::{Config, Settings};
