//! Promises: bounds on a donor's placement that are known before the donor is asked.

use comity_types::ClusterId;

use crate::model::demand::RequestSpec;
use crate::state::State;

/// A member cluster, with its position in the order of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member<'a> {
    pub(crate) at: usize,
    pub(crate) donor: &'a ClusterId,
}

/// Facts about a donor that are known before it is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise<'a> {
    pub(crate) member: Member<'a>,
    /// Lower bound on the thousandths of devices that it leaves idle, if known.
    pub(crate) idle_milli: Option<i64>,
    /// Thousandths of devices that it already lends, if known.
    pub(crate) lent_milli: Option<u64>,
}

/// All donors, without any promise.
pub(crate) fn unknown_promises<'a>(state: &'a State, spec: &RequestSpec) -> Vec<Promise<'a>> {
    let members = (0..).zip(state.clusters.keys()).filter(|(_, id)| **id != spec.origin);
    members.map(|(at, donor)| Promise { member: Member { at, donor }, idle_milli: None, lent_milli: None }).collect()
}

/// Potential donors for `spec`: all members but the origin.
pub(crate) fn donors<'a>(state: &'a State, spec: &RequestSpec) -> impl Iterator<Item = &'a ClusterId> {
    state.clusters.keys().filter(|id| **id != spec.origin)
}
