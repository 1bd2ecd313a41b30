//! Which waiting requests are kept a place for while another is placed.

use std::collections::VecDeque;

use crate::feasibility::fit::cutting::MAX_LOOKAHEAD;
use crate::model::demand::{RequestSpec, Share};
use crate::model::id::RequestId;
use crate::model::request::Request;
use crate::scheduler::order::Hypothetical;
use crate::state::State;

/// Waiting requests that MIG instances may serve, the oldest first; those that were served are left out. They are
/// looked for when the first such request is served.
pub(crate) struct Lookahead<'a> {
    near: VecDeque<(RequestId, &'a RequestSpec)>,
    rest: Box<dyn Iterator<Item = (RequestId, &'a RequestSpec)> + 'a>,
}

impl<'a> Lookahead<'a> {
    /// Of all that wait, and one that is looked at as if it did.
    pub(crate) fn new(state: &'a State, hypothetical: Option<&'a Hypothetical<'a>>) -> Self {
        let waiting = state.derived.queue.by_age.iter();
        let requests = waiting.filter_map(|(_, id)| Some((*id, &state.requests.get(id)?.spec)));
        let requests = requests.chain(hypothetical.map(|it| (it.id, &it.request.spec)));
        Self { near: VecDeque::new(), rest: Box::new(requests.filter(|(_, spec)| may_be_slices(spec))) }
    }

    /// Those behind `id`, which is served now. None where it is not itself served by instances: then they are not in
    /// its way.
    pub(crate) fn behind(&mut self, id: RequestId, request: &Request) -> Vec<&'a RequestSpec> {
        if !may_be_slices(&request.spec) {
            return Vec::new();
        }
        self.near.extend(self.rest.by_ref().take(MAX_LOOKAHEAD - self.near.len()));
        if let Some(at) = self.near.iter().position(|(near, _)| *near == id) {
            self.near.remove(at);
            self.near.extend(self.rest.next());
        }
        self.near.iter().map(|(_, spec)| *spec).collect()
    }
}

/// Whether MIG instances could be what serves it.
pub(crate) fn may_be_slices(spec: &RequestSpec) -> bool {
    matches!(spec.gpus.share, Share::MigProfile(_) | Share::MemoryMib(_))
}
