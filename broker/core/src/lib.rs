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

pub mod blob;
pub mod broker_record;
pub mod cluster;
mod cluster_sums;
pub mod command;
pub mod cow_map;
pub mod data;
pub mod demand;
pub mod envelope;
pub mod fairness;
mod gang;
pub mod health;
pub mod id;
pub mod idempotency;
pub mod invariants;
pub mod inventory;
pub mod keys;
pub mod lease;
pub mod limits;
pub mod log;
pub mod mig;
pub mod network;
pub mod occupancy;
mod offered;
pub mod packing;
pub mod peering;
pub mod placement;
pub mod policy_record;
mod queue;
pub mod reclaim;
pub mod refusal;
pub mod request;
pub mod scheduler;
pub mod settings;
pub mod snapshot;
pub mod state;
pub mod time;
mod timers;
mod transition;
mod usable;
pub mod work;

pub use blob::Blob;
pub use command::Command;
pub use id::{ClassName, ClusterId, InstitutionId, LeaseId, NodeId, PeeringId, PriorityName, RequestId, TenantId};
pub use log::{Actor, Applied, Change, Idempotency, LogEnvelope, Reply, ReplyBody};
pub use refusal::Refusal;
pub use state::State;
pub use time::{Millis, Timestamp};
