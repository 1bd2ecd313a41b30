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
pub(super) enum Step {
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
    type Operation = Step;

    fn init() -> RequestState {
        RequestState::Unknown
    }

    fn apply(step: &Step, state: &RequestState) -> (bool, RequestState) {
        let allowed = match (step, state) {
            (Step::Submitted, RequestState::Unknown) => return (true, RequestState::Waiting),
            (Step::Cancelled, RequestState::Waiting) => return (true, RequestState::Cancelled),
            // It may take effect or not: without an answer it is never over, so an order may put it last, where nothing
            // sees it.
            (Step::MaybeSubmitted, RequestState::Unknown) => return (true, RequestState::Waiting),
            (Step::MaybeCancelled, RequestState::Waiting) => return (true, RequestState::Cancelled),
            (Step::MaybeSubmitted | Step::MaybeCancelled, _) => true,
            (Step::Read(Observation::Waiting), RequestState::Waiting) => true,
            (Step::Read(Observation::Cancelled), RequestState::Cancelled) => true,
            // Of those that ended the broker keeps the latest thousand.
            (Step::Read(Observation::Nothing) | Step::NotListed, RequestState::Unknown | RequestState::Cancelled) => {
                true
            }
            (Step::Submitted | Step::Cancelled | Step::Read(_) | Step::NotListed, _) => false,
        };
        (allowed, *state)
    }
}
