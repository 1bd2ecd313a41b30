//! Request templates near to a request that is refused or would wait.

use comity_types::{ClusterId, TemplateName};

use crate::apply::command::check_submission;
use crate::explain::quote::quote;
use crate::explain::unservable::unservable;
use crate::model::demand::{RequestSpec, of_template};
use crate::model::time::{Millis, Timestamp};
use crate::state::State;

/// Templates that are quoted, the nearest ones. A quote costs as much as a plan of the whole queue.
const MAX_QUOTED: usize = 8;
/// Alternatives of one request.
const MAX_ALTERNATIVES: usize = 3;

/// A request template from which a request could start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Its name.
    pub template: TemplateName,
    /// Its name for people.
    pub title: String,
    /// Earliest start of a request from it.
    pub earliest: Timestamp,
    /// Donors of that start.
    pub donors: Vec<ClusterId>,
}

/// How far a template is from a request: differences of GPUs and of the share, in thousandths of a GPU, and of the
/// duration, in milliseconds.
type Distance = (u64, u64, u64);

/// Templates with the delivery of `spec` that its tenant is offered, and from which a request at `now`, with the donors
/// and the start window of `spec`, could start: before `sooner_than`, if that is set. At most 3 of the 8 nearest, the
/// soonest first.
#[must_use]
pub fn alternatives(
    state: &State,
    spec: &RequestSpec,
    now: Timestamp,
    sooner_than: Option<Timestamp>,
) -> Vec<Alternative> {
    let Some(record) = &state.policy else { return Vec::new() };
    let soonest = now.max(spec.not_before.unwrap_or_default());
    if sooner_than.is_some_and(|other| other <= soonest) {
        return Vec::new();
    }
    let offered = record.bundle.templates_offered_to(spec.tenant.as_str());
    let near = offered.filter_map(|template| {
        let from_template = of_template(template, spec.tenant.clone(), spec.origin.clone()).ok()?;
        let reads_the_same = (from_template.data.is_empty() || from_template.data == spec.data)
            && (from_template.purpose.is_empty() || from_template.purpose == spec.purpose);
        let candidate = RequestSpec {
            target_namespace: spec.target_namespace.clone(),
            allow_donors: spec.allow_donors.clone(),
            deny_donors: spec.deny_donors.clone(),
            not_before: spec.not_before,
            start_by: spec.start_by,
            data: spec.data.clone(),
            purpose: spec.purpose.clone(),
            submitted_by: spec.submitted_by.clone(),
            ..from_template
        };
        let is_other = candidate.template != spec.template && candidate.delivery == spec.delivery;
        (is_other && reads_the_same)
            .then(|| (distance(state, spec, &candidate), candidate, template.spec.title.as_str()))
    });
    let mut near: Vec<(Distance, RequestSpec, &str)> = near.collect();
    // Stable: equally near ones stay in the order of their names.
    near.sort_by_key(|(distance, ..)| *distance);
    near.truncate(MAX_QUOTED);
    let (mut found, mut at_once) = (Vec::new(), 0);
    for (_, candidate, title) in near {
        // None of the others can start sooner, and they are farther.
        if at_once == MAX_ALTERNATIVES {
            break;
        }
        let Some(alternative) = start_of(state, &candidate, title, now) else { continue };
        if sooner_than.is_none_or(|other| alternative.earliest < other) {
            at_once += usize::from(alternative.earliest <= soonest);
            found.push(alternative);
        }
    }
    // Stable: of those with the same start, the nearest stays first.
    found.sort_by_key(|alternative| alternative.earliest);
    found.truncate(MAX_ALTERNATIVES);
    found
}

/// When a candidate could start; `None` if it is refused, if no donor could ever serve it, or if its start window closes
/// before.
fn start_of(state: &State, candidate: &RequestSpec, title: &str, now: Timestamp) -> Option<Alternative> {
    let candidate = check_submission(state, candidate, now).ok()?;
    if unservable(state, &candidate, now).is_some() {
        return None;
    }
    let (earliest, donors) = quote(state, &candidate).earliest?;
    if candidate.start_by.is_some_and(|latest| earliest > latest) {
        return None;
    }
    Some(Alternative { template: candidate.template?, title: title.to_owned(), earliest, donors })
}

fn distance(state: &State, one: &RequestSpec, other: &RequestSpec) -> Distance {
    let share = |spec: &RequestSpec| spec.gpus.lower_bound_milli() / u64::from(spec.gpus.count.max(1));
    let term = |spec: &RequestSpec| match spec.duration {
        Millis(0) => state.settings().lease_term.0,
        Millis(duration) => duration,
    };
    (
        one.least_milli().abs_diff(other.least_milli()),
        share(one).abs_diff(share(other)),
        term(one).abs_diff(term(other)),
    )
}
