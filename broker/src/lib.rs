//! The Comity broker: places requests on donors, keeps the ledger of leases, and relays peering handshakes. Raft
//! replicates its state.
//!
//! This crate never touches a workload, never reads a secret that it relays, and changes the state only in
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
//! - [`replication`], [`group`], [`storage`], [`transport`]: replicated types; consensus, disk, peers
//! - [`tasks`]: background tasks of the leader
//! - [`watch`]: state changes for watchers and agents
//! - [`provision`], [`config`], [`command_line`]: setup and start; [`disaster_recovery`]: recovery after lost disks

pub mod api;
pub mod app;
pub mod audit_collector;
pub mod command_line;
pub mod config;
pub mod context;
pub mod disaster_recovery;
mod eligibility;
pub mod group;
pub mod metrics;
pub mod policy_source;
pub mod provision;
pub mod renewal;
pub mod replication;
pub mod storage;
pub mod tasks;
pub mod transport;
pub mod watch;

pub use app::{Broker, Listeners, StartError};
pub use config::{Config, Settings};
