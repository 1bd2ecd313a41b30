//! Describes the reclaims that make room for a request, whether in progress or only planned.

use std::collections::BTreeSet;

use comity_types::{ClusterId, LeaseId, LeaseState, PriorityName, RequestId};

use crate::explain::answer::Explanation;
use crate::feasibility::obstacles::never_fits::ones;
use crate::feasibility::reclaim_checks::preemption::reclaimed_for;
use crate::model::lease::Lease;
use crate::model::reclaim::ReclaimReason;
use crate::model::time::{Millis, Timestamp};
use crate::scheduler::plan::Plan;
use crate::state::State;
use crate::state::notice::{end_if_reclaimed, notice};

/// Leases whose reclaim lets a request start at one donor: they are there, or use borrowed quota anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reclaims {
    /// The donor of all leases; if they return quota, the one where the request will start.
    pub donor: ClusterId,
    /// Whether notice has been given; otherwise the reclaims are only planned.
    pub given: bool,
    /// Whether the leases move to another place, rather than yield to a higher priority.
    pub move_aside: bool,
    /// Whether the leases use borrowed quota that the request needs.
    pub return_quota: bool,
    /// The leases, by id; never empty.
    pub leases: Vec<ReclaimedLease>,
}

/// A lease being reclaimed, or about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReclaimedLease {
    /// The lease's id. Its tenant stays private.
    pub lease: LeaseId,
    /// The priority class of its request, if any.
    pub priority: Option<PriorityName>,
    /// Thousandths of GPUs that it holds.
    pub gpus_milli: u64,
    /// The notice given, or to be given.
    pub notice: Millis,
    /// The latest end; `None` if the lease has ended but its donor has yet to clear it.
    pub until: Option<Timestamp>,
}

/// How far reclaims have got.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Notice has been given.
    Given,
    /// A plan contains them.
    Planned,
}

impl Reclaims {
    /// Reclaims in progress for the waiting request `id`.
    pub(crate) fn given(state: &State, id: RequestId) -> Option<Self> {
        let leases = reclaimed_for(state, id);
        let reason = |lease: &Lease| lease.reclaim.as_ref().map(|it| it.reason.clone());
        let leases: Vec<(LeaseId, &Lease, ReclaimReason)> =
            leases.filter_map(|(id, lease)| Some((id, lease, reason(lease)?))).collect();
        Self::of(state, Stage::Given, leases)
    }

    /// Reclaims that `plan` makes for request `id`.
    pub(crate) fn planned(state: &State, plan: &Plan, id: RequestId) -> Option<Self> {
        let reclaims = plan.reclaims.iter().filter(|reclaim| reclaim.reason.for_request() == Some(id));
        let leases = reclaims.filter_map(|it| Some((it.lease, state.leases.get(&it.lease)?, it.reason.clone())));
        Self::of(state, Stage::Planned, leases.collect())
    }

    fn of(state: &State, stage: Stage, mut leases: Vec<(LeaseId, &Lease, ReclaimReason)>) -> Option<Self> {
        leases.sort_by_key(|(id, ..)| *id);
        let (_, first, reason) = leases.first()?;
        let (donor, return_quota) = match reason {
            ReclaimReason::BorrowedQuota { at, .. } => (at.clone(), true),
            _ => (first.placement.donor.clone(), false),
        };
        let move_aside = matches!(reason, ReclaimReason::Migration { .. });
        let given = stage == Stage::Given;
        let told = |(id, lease, reason): &(LeaseId, &Lease, ReclaimReason)| {
            let request = state.requests.get(&lease.request);
            let given = lease.reclaim.as_ref().filter(|_| given);
            ReclaimedLease {
                lease: *id,
                priority: request.and_then(|request| request.spec.priority.clone()),
                gpus_milli: lease.placement.milli(),
                notice: given.map_or_else(|| notice(state, lease, reason), |reclaim| reclaim.grace),
                until: match given {
                    Some(_) if lease.state == LeaseState::Reclaiming => lease.due(),
                    Some(_) => None,
                    None => Some(end_if_reclaimed(state, lease, reason)),
                },
            }
        };
        Some(Self { donor, given, move_aside, return_quota, leases: leases.iter().map(told).collect() })
    }

    /// The latest end of all leases; `None` if all have ended.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        self.leases.iter().filter_map(|lease| lease.until).max()
    }

    /// Thousandths of GPUs that all leases hold.
    #[must_use]
    pub fn gpus_milli(&self) -> u64 {
        self.leases.iter().fold(0, |sum, lease| sum.saturating_add(lease.gpus_milli))
    }

    /// Adds the reclaims to the summary and to the donor's answer.
    pub(crate) fn add_to(&self, explanation: &mut Explanation) {
        let (what, donor, until) = (self.leases_text(), &self.donor, self.end_text());
        let how = match (self.move_aside, self.return_quota) {
            (true, _) => "to move aside",
            (_, true) => "to return quota that it needs",
            (_, false) => "to yield to it",
        };
        let place = if self.return_quota { String::new() } else { format!(" at {donor}") };
        let (summary, unblock) = if self.given {
            let waits = format!("{what}{place}, reclaimed {how}");
            (format!("it waits for {waits}: {until}"), format!("{what} are being reclaimed for it: {until}"))
        } else {
            let notice = self.leases.iter().map(|lease| lease.notice).max().unwrap_or_default();
            let would = format!("{what} would be reclaimed {how}, with {} of notice", span(notice));
            let starts = if self.return_quota { "it starts" } else { "it starts by room that is made" };
            (format!("{starts} at {donor}: {would}; {until}"), format!("{would}: {until}"))
        };
        explanation.summary.push_str("; ");
        explanation.summary.push_str(&summary);
        let mut verdicts = explanation.donors.iter_mut().filter(|verdict| verdict.donor == *donor);
        if let Some(obstacle) = verdicts.find_map(|verdict| verdict.obstacle.as_mut()) {
            obstacle.unblock.push_str("; ");
            obstacle.unblock.push_str(&unblock);
        }
    }

    /// The number of leases, their priorities and their GPUs.
    fn leases_text(&self) -> String {
        let count = match self.leases.len() {
            1 => "1 lease".to_owned(),
            count => format!("{count} leases"),
        };
        let classes: BTreeSet<&str> =
            self.leases.iter().filter_map(|lease| Some(lease.priority.as_ref()?.as_str())).collect();
        let classes: Vec<&str> = classes.into_iter().collect();
        let classes =
            if classes.is_empty() { String::new() } else { format!(" of priority {}", classes.join(" and ")) };
        format!("{count}{classes} ({} GPUs)", ones(self.gpus_milli()))
    }

    fn end_text(&self) -> String {
        match self.until() {
            Some(until) => format!("gone by {} at the latest", until.to_minute()),
            None => format!("ended, and {} has yet to clear them", self.donor),
        }
    }
}

/// Formats a duration, rounded up to seconds.
fn span(time: Millis) -> String {
    match time.0.div_ceil(1_000) {
        minutes if minutes > 0 && minutes.is_multiple_of(60) => format!("{} min", minutes / 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_units() {
        assert_eq!([0, 1, 90_000, 600_000].map(|ms| span(Millis(ms))), ["0 s", "1 s", "90 s", "10 min"]);
    }
}
