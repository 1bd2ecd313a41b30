//! Donors, and what is known of each before it is asked.

use crate::model::demand::RequestSpec;
use crate::model::id::ClusterId;
use crate::state::State;

/// A member cluster, and its place among them in the order of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member<'a> {
    pub(crate) at: usize,
    pub(crate) donor: &'a ClusterId,
}

/// What is known of a donor before it is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise<'a> {
    pub(crate) member: Member<'a>,
    /// What it leaves idle at least, in thousandths of a device, if that is known.
    pub(crate) idle_milli: Option<i64>,
    /// What it lends already, in thousandths of a device, if that was looked up.
    pub(crate) lent_milli: Option<u64>,
}

/// All donors, of which nothing is known before they are asked.
pub(crate) fn promising_nothing<'a>(state: &'a State, spec: &RequestSpec) -> Vec<Promise<'a>> {
    let members = (0..).zip(state.clusters.keys()).filter(|(_, id)| **id != spec.origin);
    members.map(|(at, donor)| Promise { member: Member { at, donor }, idle_milli: None, lent_milli: None }).collect()
}

/// Clusters that could lend to `spec`: all members but the origin.
pub(crate) fn donors<'a>(state: &'a State, spec: &RequestSpec) -> impl Iterator<Item = &'a ClusterId> {
    state.clusters.keys().filter(|id| **id != spec.origin)
}
