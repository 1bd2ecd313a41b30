//! What workloads hear when a lease of theirs is being reclaimed, and what they answer: the origin's side.
//!
//! ```text
//! own leases ────────────────┐
//! pods on their virtual nodes ┴─▶ view ─▶ plan (pure) ─▶ notices ─▶ pods: annotations, an event
//!                                                  └──▶ saved ───▶ the agent's own plan ─▶ report `checkpointed`
//! ```
//!
//! Nothing is remembered but what pods carry: the annotations say what a pod was told, so a restart tells nothing
//! twice. Liqo carries annotations of this cluster's pods over to their shadows, so a workload reads them where it
//! runs.
//!
//! What it never does: stop a pod. A lease ends by the broker's word, at its deadline or when its work says that it is
//! saved.

mod hands;
mod plan;
mod pod;
mod saved;
mod shell;
mod view;

use comity_proto::v1;

pub use plan::{Notice, ReclaimPlan, plan};
pub use pod::PodFacts;
pub use saved::Saved;
pub use shell::{ReclaimContext, run};
pub use view::{LeaseView, ReclaimNotice, ReclaimView};

/// Annotation of pods and of a `GpuLease`: when the lease ends, RFC 3339. There while the lease is being reclaimed.
pub const RECLAIM_AT: &str = "comity.dev/reclaim-at";
/// Annotation beside it: why, as in "local-need".
pub const RECLAIM_REASON: &str = "comity.dev/reclaim-reason";
/// Annotation by which a workload answers: "true" says that it is saved.
pub const CHECKPOINTED: &str = "comity.dev/checkpointed";

/// The reclaim of a lease that is in force; `None` for one that is not reclaimed.
#[must_use]
pub fn reclaim_of(lease: &v1::Lease) -> Option<&v1::Reclaim> {
    // A side that is silent meanwhile is being reclaimed all the same.
    let is_in_force = matches!(lease.state(), v1::LeaseState::Reclaiming | v1::LeaseState::Suspect);
    lease.reclaim.as_ref().filter(|_| is_in_force)
}

/// The word for why, as in "local-need". A reason that this version does not know has its own word too, or
/// "unspecified".
#[must_use]
pub fn reason_word(reclaim: &v1::Reclaim) -> String {
    reclaim.reason().as_str_name().trim_start_matches("RECLAIM_REASON_").to_ascii_lowercase().replace('_', "-")
}
