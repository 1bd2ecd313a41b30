//! The pure heart of the Comity broker.
//!
//! What this crate does: it holds the federation's [`State`], says which [`Command`]s exist, applies them totally and
//! deterministically ([`State::apply`]), and matches queued requests against offers ([`scheduler::plan`]).
//!
//! What it never does: read a clock, draw a random number, touch a file or socket, know its Raft role, use floats or
//! iterate in hash order. Time and seeds arrive in the [`LogEnvelope`]; effects leave as values ([`Applied`]).
//!
//! ```text
//!  LogEnvelope{time, actor, command} ──▶ State::apply ──▶ Applied{reply, changes}
//!                                            ▲
//!  State ──▶ scheduler::plan ──▶ Plan ──▶ (leader proposes Command::PlaceRequests; apply checks every placement again)
//! ```
//!
//! - [`inventory`], [`demand`], [`placement`]: what there is, what is asked for, and the witness that it fits
//! - [`request`], [`lease`], [`peering`]: state machines, each with a table of legal moves
//! - [`reclaim`]: leases that are being reclaimed, and what becomes of their requests
//! - [`command`] and one file per command under it
//! - [`scheduler`]: order, filter, fit, score, reserve, explain
//! - [`fairness`]: what tenants hold, held and lend, and the shares that follow
//! - [`mig`]: which instances a device can be cut into, and where each may lie
//! - [`packing`]: the index of node states, and what each is worth under the live mix of work
//! - [`invariants`]: named sentences, one file each
//! - [`cow_map`]: tables that are copied in no time, for snapshots; [`snapshot`]: the format on disk

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
    amounts, blob, broker_record, cluster, data, demand, envelope, health, id, idempotency, inventory, keys, lease,
    limits, mig, network, peering, placement, policy_record, proposal, reclaim, refusal, reply, request, settings,
    time, work,
};
pub use scheduler::packing;
pub use state::encoding as snapshot;
pub use state::{fairness, invariants, occupancy};

pub use blob::Blob;
pub use command::Command;
pub use id::{ClassName, ClusterId, InstitutionId, LeaseId, NodeId, PeeringId, PriorityName, RequestId, TenantId};
pub use log::LogEnvelope;
pub use model::refusal::Refusal;
pub use model::reply::{Actor, Applied, Change, Idempotency, Reply, ReplyBody};
pub use state::State;
pub use time::{Millis, Timestamp};
