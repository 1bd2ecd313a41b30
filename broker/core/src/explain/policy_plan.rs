//! Effects of a policy bundle on leases, waiting requests and clusters.

use std::collections::BTreeSet;

use comity_policy::{BorrowFacts, Bundle, InUse, compile_selector};
use comity_types::{ClassName, ClusterId, LeaseId, LeaseState, RequestId, Side, TenantId};

use crate::apply::command::{ApplyPolicy, Command};
use crate::apply::entry::{LOG_FORMAT, LogEnvelope};
use crate::explain::explanation::for_one_donor;
use crate::feasibility::check::check_terms;
use crate::feasibility::donors::promise::donors;
use crate::model::actor::Actor;
use crate::model::demand::{DeviceChoice, RequestSpec};
use crate::model::limits::WHOLE_MILLI;
use crate::model::reclaim::ReclaimReason;
use crate::model::refusal::Refusal;
use crate::model::reply::ReplyBody;
use crate::model::time::Timestamp;
use crate::scheduler::reclaimer::reclaims_at;
use crate::state::State;
use crate::state::notice::schedule_notice;
use crate::state::transition::IllegalChange;

/// Most effects of a kind that are named; the others are only counted.
const MAX_EFFECTS_NAMED: usize = 100;
/// Most waiting requests that are examined, in the order of submission: each may ask every donor.
const MAX_REQUESTS_EXAMINED: usize = 5_000;

/// Effects of a bundle that is not in force yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyEffects {
    /// Whether the bundle differs from the one in force.
    pub changed: bool,
    /// Leases that would be reclaimed, or would end.
    pub leases: Effects<LeaseEffect>,
    /// Waiting requests that policy alone would keep from every donor, or would no longer keep.
    pub requests: Effects<RequestEffect>,
    /// Waiting requests that were not examined.
    pub requests_unexamined: usize,
    /// Clusters that would lend more or less.
    pub capacities: Effects<CapacityEffect>,
}

/// Effects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effects<T> {
    /// The first of them.
    pub named: Vec<T>,
    /// The number of all.
    pub count: usize,
}

impl<T> Default for Effects<T> {
    fn default() -> Self {
        Self { named: Vec::new(), count: 0 }
    }
}

impl<T> FromIterator<T> for Effects<T> {
    fn from_iter<I: IntoIterator<Item = T>>(effects: I) -> Self {
        let mut all = Self::default();
        for effect in effects {
            all.count += 1;
            if all.named.len() < MAX_EFFECTS_NAMED {
                all.named.push(effect);
            }
        }
        all
    }
}

/// A lease that would be reclaimed, or would end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseEffect {
    /// The lease.
    pub lease: LeaseId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its donor.
    pub donor: ClusterId,
    /// Thousandths of GPUs that it holds.
    pub gpu_milli: u64,
    /// The code of the denial, as in "agreement-ended"; for other reasons, the reason's name.
    pub code: String,
}

/// A waiting request whose prospects would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestEffect {
    /// The request.
    pub request: RequestId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Why policy would keep it from every donor; `None` if policy would no longer do so.
    pub denied: Option<String>,
}

/// A cluster that would lend more or less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityEffect {
    /// The cluster.
    pub cluster: ClusterId,
    /// Thousandths of GPUs that it may lend in all under the bundle in force.
    pub before_milli: u64,
    /// The same under the new bundle.
    pub after_milli: u64,
}

/// Applies `command` of an actor, whose certificate has a generation, to a copy of a state, and compares. `now` is not
/// before log time.
///
/// # Errors
/// The outer one: the entry would break the state's rules, as [`State::apply`] says. The inner one: the refusal of the
/// bundle.
pub fn policy_effects(
    before: &State,
    command: ApplyPolicy,
    (actor, generation): (Actor, u64),
    now: Timestamp,
) -> Result<Result<PolicyEffects, Refusal>, IllegalChange> {
    let mut after = before.clone();
    let entry = LogEnvelope {
        format: LOG_FORMAT,
        actor,
        generation,
        // Apply adds this shift.
        time: now.shifted(before.time_shift_ms.saturating_neg()),
        traceparent: String::new(),
        idempotency: None,
        command: Command::ApplyPolicy(command),
    };
    let changed = match after.apply(&entry)?.reply {
        Ok(reply) => reply == ReplyBody::Policy { changed: true },
        Err(refusal) => return Ok(Err(refusal)),
    };
    if !changed {
        return Ok(Ok(PolicyEffects::default()));
    }
    let clusters = before.clusters.keys();
    let capacities = clusters.filter_map(|cluster| {
        let [before_milli, after_milli] = [before, &after].map(|state| lent_at_most_milli(state, cluster));
        let cluster = cluster.clone();
        (before_milli != after_milli).then_some(CapacityEffect { cluster, before_milli, after_milli })
    });
    Ok(Ok(PolicyEffects {
        changed,
        leases: before.clusters.keys().flat_map(|donor| ended(before, &after, donor, now)).collect(),
        requests: before
            .queued()
            .take(MAX_REQUESTS_EXAMINED)
            .filter_map(|(id, request)| request_effect(before, &after, id, &request.spec))
            .collect(),
        requests_unexamined: before.queued_len().saturating_sub(MAX_REQUESTS_EXAMINED),
        capacities: capacities.collect(),
    }))
}

/// The leases at `donor` that the change would end or have reclaimed.
fn ended(before: &State, after: &State, donor: &ClusterId, now: Timestamp) -> Vec<LeaseEffect> {
    let anyway: BTreeSet<LeaseId> = reclaims_at(before, donor, now).into_iter().map(|reclaim| reclaim.lease).collect();
    let new = reclaims_at(after, donor, now).into_iter().filter(|reclaim| !anyway.contains(&reclaim.lease));
    let new = new.map(|reclaim| match reclaim.reason {
        ReclaimReason::PolicyChanged { code } => (reclaim.lease, code),
        other => (reclaim.lease, other.as_str().to_owned()),
    });
    // Those that the change moves into a suspended institution.
    let treated = before.leases_of(donor).filter(|(id, lease)| {
        let becomes = after.leases.get(id).map(|lease| lease.state);
        becomes != Some(lease.state) && matches!(becomes, Some(LeaseState::Reclaiming | LeaseState::Ending))
    });
    let revoked = ReclaimReason::Revoked { side: Side::Donor, by: None };
    let treated = treated.map(|(id, _)| (id, revoked.as_str().to_owned()));
    let effect = treated.chain(new).filter_map(|(id, code)| {
        let lease = after.leases.get(&id).filter(|lease| lease.placement.donor == *donor)?;
        let (tenant, gpu_milli) = (lease.tenant.clone(), lease.placement.milli());
        Some(LeaseEffect { lease: id, tenant, donor: donor.clone(), gpu_milli, code })
    });
    effect.collect()
}

fn request_effect(before: &State, after: &State, request: RequestId, spec: &RequestSpec) -> Option<RequestEffect> {
    let denied = denied_everywhere(after, spec);
    let changes = denied.is_some() != denied_everywhere(before, spec).is_some();
    changes.then(|| RequestEffect { request, tenant: spec.tenant.clone(), denied })
}

/// Why policy keeps the request from every donor, whatever capacity is free; `None` if it does not.
fn denied_everywhere(state: &State, spec: &RequestSpec) -> Option<String> {
    let Some(record) = &state.policy else { return Some("no policy bundle is in force".to_owned()) };
    if let Err(refusal) = check_terms(&record.bundle, spec) {
        return Some(refusal.reason);
    }
    let asked = for_one_donor(spec);
    let mut first = None;
    for donor in donors(state, spec).filter(|donor| spec.allows(donor)) {
        for class in classes(state, donor, spec) {
            match denial(state, &record.bundle, &asked, donor, &class) {
                None => return None,
                Some(reason) => first = first.or(Some(reason)),
            }
        }
    }
    first
}

/// The classes in which a donor could serve the request.
fn classes(state: &State, donor: &ClusterId, spec: &RequestSpec) -> BTreeSet<ClassName> {
    match &spec.gpus.devices {
        DeviceChoice::Class(class) => BTreeSet::from([class.clone()]),
        DeviceChoice::Selector(source) => {
            let counts = state.derived.device_counts.get(donor);
            let devices = counts.into_iter().flat_map(|counts| counts.keys());
            compile_selector(source).map_or_else(
                |_| BTreeSet::new(),
                |selector| {
                    devices.filter(|(_, facts)| selector.matches(facts)).map(|(class, _)| class.clone()).collect()
                },
            )
        }
    }
}

/// Why the terms deny a lease even if nothing is in use; waiting for the begin of an agreement may help.
fn denial(state: &State, bundle: &Bundle, spec: &RequestSpec, donor: &ClusterId, class: &ClassName) -> Option<String> {
    let decision = bundle.may_borrow(&BorrowFacts {
        tenant: spec.tenant.as_str(),
        origin_cluster: spec.origin.as_str(),
        donor_cluster: donor.as_str(),
        class: class.as_str(),
        gpus_milli: spec.least_milli(),
        beside_milli: 0,
        delivery: spec.delivery,
        duration_ms: spec.duration.0,
        notice_ms: spec.preemptible.map(|_| schedule_notice(bundle, donor).0),
        now_ms: state.log_time.0,
        in_use: InUse::default(),
    });
    let denial = decision.denial().filter(|denial| !denial.code.may_pass())?;
    Some(denial.message.clone())
}

/// Thousandths of healthy GPUs that the cluster's terms allow it to lend in all, without those that local work holds or
/// that are reserved for it.
fn lent_at_most_milli(state: &State, cluster: &ClusterId) -> u64 {
    let bundle = state.policy.as_ref().map(|record| &record.bundle);
    let Some(terms) = bundle.and_then(|bundle| bundle.clusters.get(cluster.as_str())).map(|terms| &terms.spec) else {
        return 0;
    };
    if !terms.accepting {
        return 0;
    }
    let of_classes = |lent: &dyn Fn(&str) -> bool| devices_milli(state, cluster, lent);
    let all = of_classes(&|class| terms.lends.iter().any(|term| term.classes.contains(class)));
    let of_terms = terms.lends.iter().map(|term| {
        let held = of_classes(&|class| term.classes.contains(class));
        term.max_gpus_milli.map_or(held, |most| most.min(held))
    });
    let of_terms = of_terms.fold(0, u64::saturating_add);
    let kept = all.saturating_sub(terms.local_reserve_gpus_milli).min(of_terms);
    terms.max_lent_gpus_milli.map_or(kept, |most| most.min(kept))
}

/// Thousandths of the cluster's healthy devices in the classes that `lent` accepts, without local use.
fn devices_milli(state: &State, cluster: &ClusterId, lent: &dyn Fn(&str) -> bool) -> u64 {
    let offer = state.clusters.get(cluster).and_then(|cluster| cluster.offer.as_ref());
    let mut milli = 0_u64;
    for (id, node) in offer.into_iter().flat_map(|offer| &offer.nodes) {
        let node = state.usable_node(cluster, id).unwrap_or(node);
        let devices = node.devices.iter().zip(state.device_classes(cluster, id)).filter(|_| node.schedulable);
        for (device, class) in devices.filter(|(device, _)| device.healthy) {
            if class.as_ref().is_some_and(|class| lent(class.as_str())) {
                milli = milli.saturating_add(WHOLE_MILLI.saturating_sub(device.local_use_milli).into());
            }
        }
    }
    milli
}
