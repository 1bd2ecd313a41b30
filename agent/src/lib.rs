//! The agent of one cluster: advertises free capacity, shakes hands with other clusters through the broker, and carries
//! out leases on its own cluster within its own limits.
//!
//! ```text
//! observe ─▶ uplink ═ one stream ═ broker group
//!               │ desired            ▲ outbox (state)
//!               ▼                    │
//!        reconcile: plan (pure) ─▶ execute ─▶ steps ─▶ delivery, fabric
//! ```
//!
//! Modules depend only on those to their left: `model`, `fabric`, `kubernetes`, `liqo`, `delivery`, `state`, `keys`,
//! `enrollment`, `observe`, `workload`, `config`, `reconcile`, `uplink`, `services`, `app`.
//!
//! The agent never gives the broker anything that opens a cluster, never removes anything because the broker is silent,
//! and never lends more than its own policy allows.

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
