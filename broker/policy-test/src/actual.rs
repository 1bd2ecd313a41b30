//! What happens in a scenario.

use std::collections::{BTreeMap, BTreeSet};

use comity_core::explain::{Explanation, Waiting};
use comity_core::lease::Lease;
use comity_core::proposal::ProposedReclaim;
use comity_core::{Refusal, State};
use comity_policy::{BorrowFacts, Decision, ExpectedDecision, UsageTable, show_gpus};
use comity_types::LeaseId;

/// What happens in a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actual {
    /// What becomes of the request; `None` without one.
    pub decision: Option<ExpectedDecision>,
    /// The sentence that its user reads.
    pub summary: String,
    /// The donor that serves it.
    pub donor: Option<String>,
    /// The class that the lease is charged to.
    pub class: Option<String>,
    /// The agreement under which it is granted.
    pub agreement: Option<String>,
    /// Documents that allow the lease.
    pub cites: Vec<String>,
    /// The refusal, then each donor's reason.
    pub reasons: Vec<Reason>,
    /// Warnings of rules, each once.
    pub warnings: Vec<String>,
    /// Leases that get notice, by name.
    pub reclaims: Vec<Reclaimed>,
}

/// A reason against the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Whose reason it is; `None` for the refusal.
    pub donor: Option<String>,
    /// Its code.
    pub code: String,
    /// It, and the remedy, in words.
    pub message: String,
    /// Documents behind it.
    pub cites: Vec<String>,
}

/// A lease that gets notice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reclaimed {
    /// Its name.
    pub lease: String,
    /// Why.
    pub reason: String,
}

impl Actual {
    /// A refused request; `explanation` is of the donors.
    pub(crate) fn denied(refusal: &Refusal, explanation: &Explanation) -> Self {
        let first = Reason {
            donor: None,
            code: refusal.code.as_str().to_owned(),
            message: format!("{}; {}", refusal.reason, refusal.remedy),
            cites: Vec::new(),
        };
        Self {
            decision: Some(ExpectedDecision::Denied),
            summary: refusal.reason.clone(),
            reasons: std::iter::once(first).chain(reasons(explanation)).collect(),
            warnings: warnings(explanation),
            ..Self::default()
        }
    }

    /// A request that waits.
    pub(crate) fn waits(waiting: &Waiting) -> Self {
        Self {
            decision: Some(ExpectedDecision::Waits),
            summary: waiting.explanation.summary.clone(),
            reasons: reasons(&waiting.explanation).collect(),
            warnings: warnings(&waiting.explanation),
            ..Self::default()
        }
    }

    /// A request that `lease` serves; `explanation` was made before.
    pub(crate) fn placed(state: &State, (id, lease): (LeaseId, &Lease), explanation: &Explanation) -> Self {
        let donor = lease.placement.donor.to_string();
        Self {
            decision: Some(ExpectedDecision::Placed),
            summary: format!("{} GPUs of class {} at {donor}", show_gpus(lease.placement.milli()), lease.class),
            class: Some(lease.class.to_string()),
            agreement: lease.agreement.clone(),
            cites: allowing_documents(state, id, lease),
            reasons: reasons(explanation).collect(),
            warnings: warnings(explanation),
            donor: Some(donor),
            ..Self::default()
        }
    }
}

/// The donors' reasons.
fn reasons(explanation: &Explanation) -> impl Iterator<Item = Reason> {
    let against = explanation.donors.iter().filter_map(|verdict| Some((&verdict.donor, verdict.obstacle.as_ref()?)));
    against.map(|(donor, obstacle)| Reason {
        donor: Some(donor.to_string()),
        code: obstacle.code.clone(),
        message: format!("{}; {}", obstacle.reason, obstacle.unblock),
        cites: obstacle.by.clone(),
    })
}

/// The warnings of rules at any donor, each once.
fn warnings(explanation: &Explanation) -> Vec<String> {
    let all = explanation.donors.iter().flat_map(|verdict| &verdict.warnings);
    all.cloned().collect::<BTreeSet<String>>().into_iter().collect()
}

/// The documents that allow a lease beside the others.
fn allowing_documents(state: &State, id: LeaseId, lease: &Lease) -> Vec<String> {
    let Some(bundle) = state.policy.as_ref().map(|record| &record.bundle) else { return Vec::new() };
    let mut usage = UsageTable::under(bundle);
    for (_, other) in state.live_leases().filter(|(other, _)| *other != id) {
        usage.add(&other.as_use());
    }
    let (tenant, donor, class) = (lease.tenant.as_str(), lease.placement.donor.as_str(), lease.class.as_str());
    let decision = bundle.may_borrow(&BorrowFacts {
        tenant,
        user: &lease.submitted_by,
        origin_cluster: lease.origin.as_str(),
        donor_cluster: donor,
        class,
        gpus_milli: lease.placement.milli(),
        beside_milli: 0,
        delivery: lease.delivery,
        duration_ms: lease.term.0,
        notice_ms: Some(0),
        now_ms: state.log_time.0,
        data: &lease.data,
        purpose: &lease.purpose,
        in_use: usage.in_use(tenant, lease.institution.as_str(), &lease.submitted_by, donor),
    });
    match decision {
        Decision::Allow(allowance) => allowance.because.iter().map(ToString::to_string).collect(),
        Decision::Deny(_) => Vec::new(),
    }
}

/// The reclaimed leases by their names in the scenario.
pub(crate) fn by_name(reclaims: &[ProposedReclaim], names: &BTreeMap<LeaseId, String>) -> Vec<Reclaimed> {
    let named = reclaims.iter().filter_map(|reclaim| {
        let lease = names.get(&reclaim.lease)?.clone();
        Some(Reclaimed { lease, reason: reclaim.reason.as_str().to_owned() })
    });
    let mut named: Vec<Reclaimed> = named.collect();
    named.sort();
    named
}
