//! The sequential model of one request: its states and the operations they allow.

use todc_utils::Specification;

use super::Observation;

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RequestState {
    Unknown,
    Waiting,
    Cancelled,
}

/// An operation on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStep {
    Submitted,
    /// The outcome is unknown.
    MaybeSubmitted,
    Cancelled,
    MaybeCancelled,
    Read(Observation),
    /// A list omits it.
    NotListed,
}

/// The sequential specification.
pub(super) struct OneRequest;

impl Specification for OneRequest {
    type State = RequestState;
    type Operation = RequestStep;

    fn init() -> RequestState {
        RequestState::Unknown
    }

    fn apply(step: &RequestStep, state: &RequestState) -> (bool, RequestState) {
        let allowed = match (step, state) {
            (RequestStep::Submitted, RequestState::Unknown) => return (true, RequestState::Waiting),
            (RequestStep::Cancelled, RequestState::Waiting) => return (true, RequestState::Cancelled),
            // It may take effect or not: without an answer it is never over, so an order may put it last, where nothing
            // sees it.
            (RequestStep::MaybeSubmitted, RequestState::Unknown) => return (true, RequestState::Waiting),
            (RequestStep::MaybeCancelled, RequestState::Waiting) => return (true, RequestState::Cancelled),
            (RequestStep::MaybeSubmitted | RequestStep::MaybeCancelled, _) => true,
            (RequestStep::Read(Observation::Waiting), RequestState::Waiting) => true,
            (RequestStep::Read(Observation::Cancelled), RequestState::Cancelled) => true,
            // Of those that ended the broker keeps the latest thousand.
            (
                RequestStep::Read(Observation::Nothing) | RequestStep::NotListed,
                RequestState::Unknown | RequestState::Cancelled,
            ) => true,
            (RequestStep::Submitted | RequestStep::Cancelled | RequestStep::Read(_) | RequestStep::NotListed, _) => {
                false
            }
        };
        (allowed, *state)
    }
}
