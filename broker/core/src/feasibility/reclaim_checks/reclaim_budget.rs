//! Limits on how often leases are reclaimed for local need and preemptions (`maxReclaims`).
//!
//! A reclaim that policy, a failure or a migration causes is never limited: it yields to nobody else's demand. Nor is one of
//! borrowed quota: otherwise a borrower's own document could keep what is lent to it.

use std::collections::{BTreeMap, BTreeSet};

use comity_policy::{Bundle, ReclaimRule, ReclaimScope, ReclaimedLease};
use comity_types::LeaseId;

use crate::model::lease::Lease;
use crate::model::proposal::ProposedReclaim;
use crate::model::reclaim::ReclaimReason;
use crate::model::refusal::{Code, Refusal};
use crate::model::time::{Millis, Timestamp};
use crate::state::State;

/// Whether limits count reclaims for this reason.
pub(crate) fn is_limited(reason: &ReclaimReason) -> bool {
    match reason {
        ReclaimReason::LocalNeed | ReclaimReason::Preempted { .. } => true,
        ReclaimReason::PolicyChanged { .. }
        | ReclaimReason::Migration { .. }
        | ReclaimReason::BorrowedQuota { .. }
        | ReclaimReason::DeviceFailed { .. }
        | ReclaimReason::NodeFailed { .. }
        | ReclaimReason::DonorSilent
        | ReclaimReason::Revoked { .. }
        | ReclaimReason::UserRevoked { .. } => false,
    }
}

/// A limit that a reclaim would exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReachedLimit {
    /// The setting, as in "maxReclaims of Cluster ncc-main".
    pub setting: String,
    /// When the next reclaim is allowed; `None`: the limit allows none.
    pub until: Option<Timestamp>,
}

impl ReachedLimit {
    /// The limit and its end, for people.
    #[must_use]
    pub fn text(&self) -> String {
        match self.until {
            Some(until) => format!("reclaim-limited by {}, the next is allowed at {}", self.setting, until.to_minute()),
            None => format!("reclaim-limited: {} allows none", self.setting),
        }
    }
}

/// The reclaims that limits still allow, besides those already taken.
#[derive(Clone)]
pub(crate) struct ReclaimBudget<'a> {
    state: &'a State,
    bundle: Option<&'a Bundle>,
    now: Timestamp,
    taken: Vec<ReclaimedLease<'a>>,
}

fn facts(lease: &Lease) -> ReclaimedLease<'_> {
    ReclaimedLease { donor: lease.placement.donor.as_str(), tenant: lease.tenant.as_str(), class: lease.class.as_str() }
}

impl<'a> ReclaimBudget<'a> {
    pub(crate) fn new(state: &'a State, now: Timestamp) -> Self {
        let bundle = state.policy.as_ref().map(|record| &*record.bundle);
        Self { state, bundle, now, taken: Vec::new() }
    }

    /// Counts the planned reclaims.
    pub(crate) fn beside(state: &'a State, planned: &[ProposedReclaim]) -> Self {
        let mut budget = Self::new(state, state.log_time);
        let limited = planned.iter().filter(|planned| is_limited(&planned.reason));
        budget.taken.extend(limited.filter_map(|planned| state.leases.get(&planned.lease)).map(facts));
        budget
    }

    /// The limit that one more reclaim, that of `lease`, would exceed the longest.
    pub(crate) fn reached(&self, lease: &Lease) -> Option<ReachedLimit> {
        let bundle = self.bundle?;
        let rules = bundle.reclaim_rules(&facts(lease)).into_iter();
        let reached = rules.filter_map(|rule| self.reached_by(bundle, &rule));
        reached.max_by_key(|limit| (limit.until.is_none(), limit.until))
    }

    fn reached_by(&self, bundle: &Bundle, rule: &ReclaimRule<'_>) -> Option<ReachedLimit> {
        let (most, period) = (usize::try_from(rule.limit.leases).unwrap_or(usize::MAX), Millis(rule.limit.per_ms));
        let mut times = self.state.reclaims.times(bundle, rule.scope);
        times.retain(|at| self.now.since(*at) < period);
        let taken = self.taken.iter().filter(|lease| bundle.counts_reclaim(rule.scope, lease));
        times.extend(taken.map(|_| self.now));
        if times.len() < most {
            return None;
        }
        let setting = match rule.scope {
            ReclaimScope::Donor(donor) => {
                let own = bundle.clusters.get(donor).is_some_and(|terms| terms.spec.max_reclaims.is_some());
                if own {
                    format!("maxReclaims of Cluster {donor}")
                } else {
                    "defaults.maxReclaims of the Federation".to_owned()
                }
            }
            ReclaimScope::Tenant(_) => "limits.maxReclaimsPerTenant of the Federation".to_owned(),
            ReclaimScope::Quota(name) => format!("maxReclaims of Quota {name}"),
        };
        let until = times.get(times.len() - most).map(|at| at.after(period));
        Some(ReachedLimit { setting, until })
    }

    /// Counts the reclaim of `lease`. False, without counting it, if a limit does not allow it.
    pub(crate) fn take(&mut self, lease: &'a Lease) -> bool {
        let allowed = self.reached(lease).is_none();
        if allowed {
            self.taken.push(facts(lease));
        }
        allowed
    }

    /// Counts the reclaims of all these leases, or of none and returns the limit that forbids one of them.
    pub(crate) fn take_all(&mut self, leases: impl IntoIterator<Item = &'a Lease>) -> Result<(), ReachedLimit> {
        let before = self.taken.len();
        for lease in leases {
            if let Some(limit) = self.reached(lease) {
                self.taken.truncate(before);
                return Err(limit);
            }
            self.taken.push(facts(lease));
        }
        Ok(())
    }
}

/// The proposed leases whose reclaim a limit does not allow, with that limit. Of a preemption all or none are allowed.
pub(crate) fn beyond_limits(state: &State, proposals: &[ProposedReclaim]) -> BTreeMap<LeaseId, ReachedLimit> {
    let mut budget = ReclaimBudget::new(state, state.log_time);
    let mut beyond = BTreeMap::new();
    let mut preemptions = BTreeSet::new();
    for proposed in proposals.iter().filter(|proposed| is_limited(&proposed.reason)) {
        let mut together: Vec<&ProposedReclaim> = vec![proposed];
        if let ReclaimReason::Preempted { by } = &proposed.reason {
            if !preemptions.insert(*by) {
                continue;
            }
            together = proposals.iter().filter(|other| other.reason == proposed.reason).collect();
        }
        let leases = together.iter().filter_map(|proposed| state.leases.get(&proposed.lease));
        if let Err(limit) = budget.take_all(leases) {
            beyond.extend(together.iter().map(|proposed| (proposed.lease, limit.clone())));
        }
    }
    beyond
}

/// The refusal of a reclaim beyond a limit.
pub(crate) fn limited(id: LeaseId, limit: &ReachedLimit) -> Refusal {
    Refusal::new(Code::LimitReached, format!("{id} runs on: {}", limit.text()), "wait until then").at("lease", id)
}
