//! A request is queued.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::invite_cluster::no_policy;
use crate::demand::RequestSpec;
use crate::limits::MAX_QUEUED_REQUESTS;
use crate::log::{Reply, ReplyBody};
use crate::matcher;
use crate::refusal::{Code, Refusal};
use crate::request::{Request, RequestState};
use crate::state::State;
use crate::time::Millis;
use crate::transition::Transition;

/// Queues a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitRequest {
    /// What is asked for.
    pub spec: RequestSpec,
    /// SPIFFE id of who submits.
    pub submitted_by: String,
}

impl SubmitRequest {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let spec = check(transition.state, &self.spec)?;
        let request = transition.insert_request(Request {
            spec,
            state: RequestState::Queued,
            lease: None,
            submitted_at: transition.now,
            submitted_by: self.submitted_by.clone(),
            traceparent: transition.traceparent.to_owned(),
            attempts: 0,
            failed_donors: BTreeSet::new(),
            message: "waiting for a donor".to_owned(),
            revision: 0,
        });
        Ok(ReplyBody::Request(request))
    }
}

/// Checks that a request could ever be served, and fills in defaults. Also what a dry run does.
pub fn check(state: &State, spec: &RequestSpec) -> Result<RequestSpec, Refusal> {
    spec.check()?;
    if state.policy.is_none() {
        return Err(no_policy());
    }
    if !state.clusters.contains_key(&spec.origin) {
        return Err(Refusal::not_found("spec.origin", &spec.origin, "cluster"));
    }
    matcher::check_request(state, spec)?;
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
    Ok(spec)
}
