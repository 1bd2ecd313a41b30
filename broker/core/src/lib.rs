//! The deterministic core of the Comity broker.
//!
//! This crate holds the federation's [`State`], defines the [`Command`]s, applies them deterministically
//! ([`State::apply`]), and plans placements for queued requests ([`scheduler::plan`]).
//!
//! It never reads a clock, draws a random number, touches a file or socket, knows its Raft role, uses floats or
//! iterates in hash order. Time and seeds arrive in the [`LogEnvelope`]; effects leave as values ([`Applied`]).
//!
//! ```text
//!  LogEnvelope{time, actor, command} ──▶ State::apply ──▶ Applied{reply, changes}
//!                                            ▲
//!  State ──▶ scheduler::plan ──▶ Plan ──▶ (leader proposes Command::PlaceRequests; apply checks every placement again)
//! ```
//!
//! - [`inventory`], [`demand`], [`placement`]: capacity, requests, and the chosen nodes and devices
//! - [`request`], [`lease`], [`peering`]: records with the states of `comity-types`
//! - [`member_certificate`]: the root of each member's newest certificate
//! - [`revocation`]: void certificates, evicted clusters, suspended institutions
//! - [`reclaim`]: leases under reclaim, and what happens to their requests
//! - [`command`]: one file per command
//! - [`scheduler`]: order, filter, fit, score, reserve, explain
//! - [`fairness`]: present and past use and lending of tenants, and the resulting shares
//! - [`mig`]: the instances that a device can be partitioned into, and where each may lie
//! - [`packing`]: the index of node states, and the value of each under the current mix of work
//! - [`invariants`]: named invariants, one file each
//! - [`cow_map`]: tables with cheap copies
//! - [`snapshot`]: the format of Raft snapshots on disk

mod apply;
mod collections;
pub mod explain;
pub mod feasibility;
mod model;
pub mod scheduler;
pub mod state;

pub use apply::command;
pub use apply::entry as log;
pub use collections::cow_map;
pub use model::{
    actor, amounts, blob, broker_record, cluster, data, demand, envelope, health, idempotency, inventory, invite, keys,
    lease, limits, member_certificate, meter, mig, network, peering, placement, policy_record, proposal, provenance,
    reclaim, refusal, reply, request, revocation, settings, time, work,
};
pub use scheduler::packing;
pub use state::encoding as snapshot;
pub use state::{fairness, invariants, occupancy};

pub use actor::Actor;
pub use blob::Blob;
pub use command::Command;
pub use log::LogEnvelope;
pub use model::invite::InviteSubject;
pub use model::refusal::Refusal;
pub use model::reply::{Applied, Change, Idempotency, Reply, ReplyBody};
pub use state::transition::IllegalChange;
pub use state::{Records, State};
pub use time::{Millis, Timestamp};
