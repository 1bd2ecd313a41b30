//! Plans a change of policy: what a bundle that is not in force would do to documents, leases, requests and capacity.
//!
//! ```text
//!   state ──▶ copy, now ───────────────▶ ┐ the same checks and the same planner
//!     └─────▶ copy, with the new bundle ─▶ ┘ on both; the plan is what differs
//! ```

mod borrowing_effects;
mod capacity_effects;
mod cohort_effects;
mod institution_effects;
mod lease_effects;
mod next_in_queue;
mod request_effects;

use comity_policy::{Bundle, BundleChanges};

pub use borrowing_effects::BorrowingEffect;
pub use capacity_effects::CapacityEffect;
pub use cohort_effects::CohortEffect;
pub use institution_effects::InstitutionEffect;
pub use lease_effects::LeaseEffect;
pub use next_in_queue::NextInQueue;
pub use request_effects::{Prospect, RequestEffect};

use self::borrowing_effects::borrowing_effects;
use self::capacity_effects::capacity_effects;
use self::cohort_effects::cohort_effects;
use self::institution_effects::institution_effects;
use self::lease_effects::lease_effects;
use self::next_in_queue::next_in_queue;
use self::request_effects::request_effects;
use crate::apply::command::{ApplyPolicy, Command};
use crate::apply::entry::{LOG_FORMAT, LogEnvelope};
use crate::model::actor::Actor;
use crate::model::limits::MAX_PLACEMENTS_PER_PLAN;
use crate::model::refusal::Refusal;
use crate::model::reply::ReplyBody;
use crate::model::time::Timestamp;
use crate::scheduler::plan::Plan;
use crate::scheduler::planner;
use crate::state::State;
use crate::state::transition::{IllegalChange, Transition};

/// Most effects of a kind that are named; the others are only counted.
const MAX_EFFECTS_NAMED: usize = 100;

/// What a bundle that is not in force would change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyPlan {
    /// Whether applying the bundle would replace the one in force. Only its files or its commit may differ.
    pub replaces: bool,
    /// Documents that would change. If there are none, nothing else would.
    pub documents: BundleChanges,
    /// Leases that would end, or could no longer be renewed.
    pub leases: Effects<LeaseEffect>,
    /// Waiting requests that would become possible or impossible.
    pub requests: Effects<RequestEffect>,
    /// Tenants that could borrow other classes than before.
    pub borrowing: Effects<BorrowingEffect>,
    /// Clusters that would lend more or less.
    pub capacities: Effects<CapacityEffect>,
    /// Institutions that would lend, or could borrow, more or less.
    pub institutions: Effects<InstitutionEffect>,
    /// Quotas that would lend to their cohorts, or could borrow of them, more or less.
    pub cohorts: Effects<CohortEffect>,
    /// The requests that would be served next, in order.
    pub queue: Effects<NextInQueue>,
}

/// Effects of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effects<T> {
    /// The first of them.
    pub named: Vec<T>,
    /// The number of all.
    pub count: usize,
    /// Leases, requests, tenants or institutions that were not examined, because there are too many.
    pub unexamined: usize,
}

impl<T> Default for Effects<T> {
    fn default() -> Self {
        Self { named: Vec::new(), count: 0, unexamined: 0 }
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

/// A state, and what the leader would plan in it.
struct Planned<'s> {
    state: &'s State,
    plan: Plan,
    /// The bundle without limits on single requests, for what may be borrowed in whatever amount.
    unsplit: Option<Bundle>,
}

impl<'s> Planned<'s> {
    fn of(state: &'s State) -> Self {
        let unsplit = bundle(state).map(Bundle::without_limits_on_requests);
        Self { state, plan: planner::plan(state, MAX_PLACEMENTS_PER_PLAN), unsplit }
    }
}

fn bundle(state: &State) -> Option<&Bundle> {
    state.policy.as_ref().map(|record| record.bundle.as_ref())
}

fn changes(before: &State, after: &State) -> BundleChanges {
    bundle(after).map(|after| after.changes_since(bundle(before))).unwrap_or_default()
}

/// Applies `command` of an actor, whose certificate has a generation, to a copy of a state, and compares. `now` is not
/// before log time.
///
/// # Errors
/// The outer one: the entry would break the state's rules, as [`State::apply`] says. The inner one: the refusal of the
/// bundle.
pub fn policy_plan(
    state: &State,
    command: ApplyPolicy,
    (actor, generation): (Actor, u64),
    now: Timestamp,
) -> Result<Result<PolicyPlan, Refusal>, IllegalChange> {
    let (mut before, mut after) = (state.clone(), state.clone());
    // Whether the owners sign is judged commit by commit, when the leader pulls: a plan says what a merge would do.
    let requires_signatures =
        state.policy.as_ref().is_some_and(|record| record.bundle.federation.spec.signatures.required);
    let actor = if requires_signatures { Actor::Leader(0) } else { actor };
    let entry = LogEnvelope {
        format: LOG_FORMAT,
        actor,
        generation,
        // Apply adds this shift.
        time: now.shifted(state.time_shift_ms.saturating_neg()),
        traceparent: String::new(),
        idempotency: None,
        command: Command::ApplyPolicy(command),
    };
    match after.apply(&entry)?.reply {
        Ok(ReplyBody::Policy { changed: true }) => {}
        Ok(_) => return Ok(Ok(PolicyPlan::default())),
        Err(refusal) => return Ok(Err(refusal)),
    }
    // What happens with time alone is no effect of the bundle.
    Transition::advance_log_time(&mut before, entry.time);
    let documents = changes(&before, &after);
    if documents.is_empty() {
        return Ok(Ok(PolicyPlan { replaces: true, ..PolicyPlan::default() }));
    }
    let (before, after) = (Planned::of(&before), Planned::of(&after));
    Ok(Ok(PolicyPlan {
        replaces: true,
        documents,
        leases: lease_effects(&before, &after),
        requests: request_effects(&before, &after),
        borrowing: borrowing_effects(&before, &after),
        capacities: capacity_effects(before.state, after.state),
        institutions: institution_effects(&before, &after),
        cohorts: cohort_effects(before.state, after.state),
        queue: next_in_queue(&before, &after),
    }))
}
