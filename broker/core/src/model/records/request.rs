//! Offloading requests.

use std::collections::BTreeSet;

use comity_policy::show_duration;
use comity_types::{ClusterId, EndReason, LeaseId, RequestState};
use serde::{Deserialize, Serialize};

use crate::model::demand::RequestSpec;
use crate::model::limits::RETRY_PAUSE_MS;
use crate::model::time::{Millis, Timestamp};

/// A request for GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The demand, with defaults filled in.
    pub spec: RequestSpec,
    /// Its state.
    pub state: RequestState,
    /// Its current or last lease.
    pub lease: Option<LeaseId>,
    /// Further leases of a gang besides `lease`: at other donors, or for members that joined later.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub parts: BTreeSet<LeaseId>,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// W3C traceparent of its submission, so that later work joins the same trace; empty if none.
    pub traceparent: String,
    /// Placements tried so far.
    pub attempts: u32,
    /// Times that a lease of it was reclaimed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reclaims: u32,
    /// Donors that failed it, that its origin refused for it (`spec.deny_donors` has these too), or that its origin
    /// refused lately when it was submitted. The scheduler avoids them while others can serve it.
    pub failed_donors: BTreeSet<ClusterId>,
    /// Whether its start window has not opened yet.
    pub early: bool,
    /// When it is tried again, if it waits because a donor failed it repeatedly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// The donor that reclaimed leases for this request, while it waits.
    pub room_at: Option<ClusterId>,
    /// Status message for people.
    pub message: String,
    /// Revision that last changed it.
    pub revision: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Request {
    /// Whether it waits and may be placed now.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.state == RequestState::Queued && !self.early && self.retry_at.is_none()
    }

    /// When it may be placed, if it may not be now: its start window opens, or it is tried again.
    pub(crate) fn opens_at(&self) -> Option<Timestamp> {
        self.spec.not_before.filter(|_| self.early).max(self.retry_at)
    }

    /// When it needs attention as time passes: it opens, or its latest start is over.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        let deadline = self.spec.start_by.filter(|_| !self.early);
        if self.state == RequestState::Queued { self.opens_at().into_iter().chain(deadline).min() } else { None }
    }

    /// Its leases, the first one first; if it is not placed, its last lease.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.lease.into_iter().chain(self.parts.iter().copied())
    }

    /// Notes a donor whose lease ended for `reason` before the work was served.
    pub(crate) fn avoid(&mut self, donor: ClusterId, reason: EndReason) {
        if reason == EndReason::OriginRefused && self.spec.allows(&donor) {
            self.spec.deny_donors.push(donor.clone());
        }
        self.failed_donors.insert(donor);
    }

    /// Queues it again after `donor` failed it. A donor that failed it before was its last resort, and gets time to recover:
    /// 30 s, 60 s, then 120 s.
    pub(crate) fn try_again(&mut self, donor: ClusterId, reason: EndReason, now: Timestamp) {
        let failed_again = self.failed_donors.contains(&donor);
        self.avoid(donor, reason);
        self.state = RequestState::Queued;
        if failed_again {
            let pause = Millis(RETRY_PAUSE_MS << self.attempts.saturating_sub(1));
            self.retry_at = Some(now.after(pause));
            self.message.push_str(&format!("; it is tried again in {}", show_duration(pause.0)));
        }
    }

    /// Start of its wait: its submission, or the opening of its start window.
    #[must_use]
    pub fn waits_since(&self) -> Timestamp {
        self.spec.not_before.map_or(self.submitted_at, |opened| opened.max(self.submitted_at))
    }
}
