//! The sequential model of one request: its states and the operations they allow.

use todc_utils::Specification;

use super::Saw;

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stands {
    Unknown,
    Waiting,
    Cancelled,
}

/// An operation on one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Submitted,
    /// Nobody knows whether it took effect.
    MaybeSubmitted,
    Cancelled,
    MaybeCancelled,
    Read(Saw),
    /// A list does not show it.
    NotListed,
}

/// The sequential specification.
pub(super) struct OneRequest;

impl Specification for OneRequest {
    type State = Stands;
    type Operation = Step;

    fn init() -> Stands {
        Stands::Unknown
    }

    fn apply(step: &Step, state: &Stands) -> (bool, Stands) {
        let allowed = match (step, state) {
            (Step::Submitted, Stands::Unknown) => return (true, Stands::Waiting),
            (Step::Cancelled, Stands::Waiting) => return (true, Stands::Cancelled),
            // It may take effect or not: without an answer it is never over, so an order may put it last, where nothing
            // sees it.
            (Step::MaybeSubmitted, Stands::Unknown) => return (true, Stands::Waiting),
            (Step::MaybeCancelled, Stands::Waiting) => return (true, Stands::Cancelled),
            (Step::MaybeSubmitted | Step::MaybeCancelled, _) => true,
            (Step::Read(Saw::Waiting), Stands::Waiting) => true,
            (Step::Read(Saw::Cancelled), Stands::Cancelled) => true,
            // Of those that ended the broker keeps the latest thousand.
            (Step::Read(Saw::Nothing) | Step::NotListed, Stands::Unknown | Stands::Cancelled) => true,
            (Step::Submitted | Step::Cancelled | Step::Read(_) | Step::NotListed, _) => false,
        };
        (allowed, *state)
    }
}
