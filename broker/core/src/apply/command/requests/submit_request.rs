//! Queues a request.

use std::collections::BTreeSet;

use comity_types::{PriorityName, RequestState};
use serde::{Deserialize, Serialize};

use crate::feasibility::check_request;
use crate::model::demand::RequestSpec;
use crate::model::limits::{MAX_QUEUED_REQUESTS, MAX_START_AHEAD_MS};
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::request::Request;
use crate::model::time::{Millis, Timestamp};
use crate::state::State;
use crate::state::transition::Transition;

/// Queues a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitRequest {
    /// The request as submitted.
    pub spec: RequestSpec,
    /// SPIFFE id of the submitter.
    pub submitted_by: String,
}

impl SubmitRequest {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let checked = check(transition.state(), &self.spec, transition.now())?;
        let spec = RequestSpec { submitted_by: self.submitted_by.clone(), ..checked };
        let early = spec.not_before.is_some_and(|opens| opens > transition.now());
        let origin = transition.state().clusters.get(&spec.origin);
        let refused = origin.into_iter().flat_map(|origin| origin.refused_lately(transition.now()));
        let failed_donors = refused.cloned().collect();
        let message = if early { "waiting for its start window" } else { "waiting for a donor" };
        let request = transition.insert_request(Request {
            spec,
            state: RequestState::Queued,
            lease: None,
            parts: BTreeSet::new(),
            submitted_at: transition.now(),
            traceparent: transition.traceparent().to_owned(),
            attempts: 0,
            reclaims: 0,
            failed_donors,
            early,
            retry_at: None,
            room_at: None,
            message: message.to_owned(),
            revision: 0,
        });
        Ok(ReplyBody::Request(request))
    }
}

/// Checks that a request submitted at `now` could ever be served, and fills in defaults. A dry run also calls it; it
/// passes the current time because log time stands still while nothing is applied.
pub fn check(state: &State, spec: &RequestSpec, now: Timestamp) -> Result<RequestSpec, Refusal> {
    spec.check()?;
    if state.policy.is_none() {
        return Err(Refusal::no_policy());
    }
    if !state.clusters.contains_key(&spec.origin) {
        return Err(Refusal::not_found("spec.origin", &spec.origin, "cluster"));
    }
    state.check_borrower(&spec.origin, &spec.tenant)?;
    check_start_window(spec, now)?;
    check_request(state, spec)?;
    if state.queued_len() >= MAX_QUEUED_REQUESTS {
        return Err(Refusal::new(
            Code::LimitReached,
            format!("{MAX_QUEUED_REQUESTS} requests wait already"),
            "try again when the queue is shorter",
        ));
    }
    let mut spec = spec.clone();
    if spec.duration == Millis(0) {
        spec.duration = state.settings().lease_term;
    }
    if spec.priority.is_none() {
        let default = state.policy.as_ref().and_then(|record| record.bundle.default_priority());
        spec.priority = default.map(|class| PriorityName::parse(class, "spec.priority")).transpose()?;
    }
    Ok(spec)
}

/// Refuses a deadline in the past, and one so far ahead that the units must be wrong.
fn check_start_window(spec: &RequestSpec, now: Timestamp) -> Result<(), Refusal> {
    if let Some(start_by) = spec.start_by.filter(|start_by| *start_by <= now) {
        let remedy = format!("name a time in milliseconds since 1970 that is after {}, or none", now.0);
        return Err(Refusal::invalid("spec.start_by_ms", start_by.0, "has passed", remedy));
    }
    let latest = now.after(Millis(MAX_START_AHEAD_MS));
    for (field, time) in [("spec.not_before_ms", spec.not_before), ("spec.start_by_ms", spec.start_by)] {
        if let Some(time) = time.filter(|time| *time > latest) {
            let remedy = format!("name a time in milliseconds since 1970 of at most {}", latest.0);
            return Err(Refusal::invalid(field, time.0, "is too far ahead", remedy));
        }
    }
    Ok(())
}
