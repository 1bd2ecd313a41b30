//! The requests behind the current one: placement leaves room for their MIG instances.

use std::collections::VecDeque;

use comity_types::RequestId;

use crate::feasibility::fit::cutting::MAX_LOOKAHEAD;
use crate::model::demand::{RequestSpec, Share};
use crate::model::request::Request;
use crate::scheduler::order::Hypothetical;
use crate::state::State;

/// Waiting requests that MIG instances may serve, oldest first, without those already served. Filled lazily, once the
/// first such request is served.
pub(crate) struct Lookahead<'a> {
    near: VecDeque<(RequestId, &'a RequestSpec)>,
    rest: Box<dyn Iterator<Item = (RequestId, &'a RequestSpec)> + 'a>,
}

impl<'a> Lookahead<'a> {
    /// Covers all waiting requests, and the hypothetical one.
    pub(crate) fn new(state: &'a State, hypothetical: Option<&'a Hypothetical<'a>>) -> Self {
        let waiting = state.derived.queue.by_age.iter();
        let requests = waiting.filter_map(|(_, id)| Some((*id, &state.requests.get(id)?.spec)));
        let requests = requests.chain(hypothetical.map(|it| (it.id, &it.request.spec)));
        Self { near: VecDeque::new(), rest: Box::new(requests.filter(|(_, spec)| may_use_mig(spec))) }
    }

    /// The requests behind `id`, which is being served. Empty unless MIG instances may serve `id`, since they would not
    /// compete.
    pub(crate) fn behind(&mut self, id: RequestId, request: &Request) -> Vec<&'a RequestSpec> {
        if !may_use_mig(&request.spec) {
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

/// Whether MIG instances may serve the demand.
pub(crate) fn may_use_mig(spec: &RequestSpec) -> bool {
    matches!(spec.gpus.share, Share::MigProfile(_) | Share::MemoryMib(_))
}
