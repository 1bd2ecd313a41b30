//! Notifies workloads on the origin when their lease is being reclaimed, and reads their answers.
//!
//! ```text
//! own leases ────────────────┐
//! pods on their virtual nodes ┴─▶ snapshot ─▶ plan (pure) ─▶ notices ─▶ pods: annotations, an event
//!                                                  └──▶ saved ───▶ the agent's own plan ─▶ report `checkpointed`
//! ```
//!
//! Pods carry all state: their annotations record the notice, so a restart repeats none. Liqo copies annotations to
//! the shadow pods on the donor, so that workloads read them where they run.
//!
//! It never stops a pod: the broker ends the lease, at its deadline or when its work is saved.

mod bound_pod;
mod notice_plan;
mod notify;
mod reclaim_loop;
mod reclaim_snapshot;
mod saved;

use comity_agent_model::lease::Lease;
use comity_agent_model::lease::reclaim::{Reclaim, ReclaimReason};
use comity_types::LeaseState;

pub use bound_pod::BoundPod;
pub use notice_plan::{Notice, ReclaimPlan, plan};
pub use reclaim_loop::{ReclaimContext, run};
pub use reclaim_snapshot::{LeaseView, ReclaimNotice, ReclaimSnapshot};
pub use saved::Saved;

/// Annotation of pods and of a `GpuLease`: when the lease ends, RFC 3339. Present while the lease is being reclaimed.
pub const RECLAIM_AT: &str = "comity.dev/reclaim-at";
/// Annotation: the reason of the reclaim, as in "local-need".
pub const RECLAIM_REASON: &str = "comity.dev/reclaim-reason";
/// Annotation by which a workload answers: "true" means that its work is saved.
pub const CHECKPOINTED: &str = "comity.dev/checkpointed";

/// The reclaim of a lease that is in force; `None` for one that is not reclaimed.
#[must_use]
pub fn reclaim_of(lease: &Lease) -> Option<&Reclaim> {
    // A suspect lease may be under reclaim too.
    let is_in_force = matches!(lease.state, Some(LeaseState::Reclaiming | LeaseState::Suspect));
    lease.reclaim.as_ref().filter(|_| is_in_force)
}

/// The reason in kebab case, as in "local-need"; "unspecified" if this version does not know it.
#[must_use]
pub fn reason_word(reclaim: &Reclaim) -> &'static str {
    reclaim.reason.map_or("unspecified", ReclaimReason::as_str)
}
