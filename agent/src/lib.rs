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
//! Each system that the agent acts on has its own crate: `fabric` (tunnels), `kubernetes`, `liqo`, `delivery`, `state`
//! (records on disk) and `workload`, over the types of `model`. Modules depend only on those crates and on modules to
//! their left: `keys`, `enrollment`, `exporters`, `devices`, `mig`, `observe`, `usage`, `config`, `signed_policy`,
//! `reconcile`, `uplink`, `services`, `standby`, `app`, `host`, `preflight`.
//!
//! The agent never gives the broker anything that opens a cluster, never removes anything because the broker is silent,
//! and never lends more than its own policy allows.

pub mod app;
pub mod command_line;
pub mod config;
pub mod devices;
pub mod enrollment;
pub mod exporters;
pub mod host;
pub mod keys;
pub mod metrics;
pub mod mig;
pub mod observe;
pub mod preflight;
pub mod reconcile;
pub mod services;
pub(crate) mod signed_policy;
pub mod standby;
pub mod uplink;
pub mod usage;

pub use app::{Agent, AgentError};
pub use config::Config;
