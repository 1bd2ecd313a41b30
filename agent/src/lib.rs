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

pub mod app;
pub mod command_line;
pub mod config;
pub mod delivery;
pub mod enrollment;
pub mod fabric;
pub mod keys;
pub mod kubernetes;
pub mod liqo;
pub mod metrics;
pub mod model;
pub mod observe;
pub mod reconcile;
pub mod services;
pub mod state;
pub mod uplink;
pub mod workload;

pub use app::{Agent, AgentError};
pub use config::Config;
