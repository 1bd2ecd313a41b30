//! The agent of one cluster: it advertises what is free, shakes hands with other clusters through the broker, and
//! carries out leases on its own cluster, within its own limits.
//!
//! ```text
//! observe ─▶ uplink ═ one stream ═ broker group
//!               │ desired            ▲ outbox (store)
//!               ▼                    │
//!             plan (pure) ─▶ execute ─▶ steps ─▶ delivery, fabric
//! ```
//!
//! What it never does: give the broker anything that opens a cluster; take something down because the broker is silent;
//! lend more than its own policy says, whoever asks.

pub mod acks;
mod api_server_calls;
pub mod app;
pub mod burst;
pub mod command_line;
pub mod config;
pub mod crd;
pub mod delivery;
pub mod desired;
mod dns_label;
#[cfg(test)]
mod error_page;
pub mod execute;
pub mod fabric;
mod failing;
pub mod fault;
pub mod join;
pub mod keybundle;
pub mod kubernetes_api;
pub mod liqo;
pub mod local_api;
pub mod local_policy;
mod measured;
pub mod metrics;
pub mod node_service;
pub mod nodes;
pub mod observe;
pub mod plan;
pub mod reach;
pub mod reclaim;
pub mod record;
pub mod renew;
pub mod seal;
pub mod steps;
pub mod store;
pub mod uplink;

pub use app::{Agent, AgentError};
pub use config::Config;
