//! Places the head of a long queue, largest requests first, if all of them fit.
//!
//! As in a [batch](crate::scheduler::batch), all placements of a plan start at the same time, so the order among placed
//! requests does not matter to them. The requests that one plan may hold are placed in descending order of size, and
//! equal demands one after another. So small requests do not break up the room of a large gang, and the search for one
//! demand helps the next equal one. If any request fits nowhere, all of this is undone and the requests are placed in
//! queue order.

use std::cmp::Reverse;

use comity_types::RequestId;

use crate::feasibility::demand_key::DemandKey;
use crate::model::amounts::Amounts;
use crate::model::request::Request;
use crate::scheduler::lookahead::may_use_mig;
use crate::scheduler::order::Order;
use crate::scheduler::plan_state::placed::Purpose;
use crate::scheduler::planning::Planning;
use crate::scheduler::stand_back::StandBack;

impl<'a> Planning<'a, '_> {
    /// Places the next `limit` waiting requests. Returns false and changes nothing if they do not all fit, if one of them
    /// [stands back](crate::scheduler::stand_back), or if the plan has placements or reservations already.
    pub(crate) fn place_head_batch(&mut self, limit: usize, stand_back: &StandBack<'a>) -> bool {
        let is_empty = self.plan_state.placed().is_empty() && self.plan_state.reserved().is_empty();
        if !is_empty || self.hypothetical.is_some() {
            return false;
        }
        let Some(requests) = self.queue_head(limit) else { return false };
        // Those of the batch that are placed count as in use, and no longer as waiting.
        let mut stand_back = stand_back.clone();
        let start = self.plan_state.checkpoint();
        for (id, request) in requests {
            let found = self.find_unless_failed(request);
            stand_back.count_tried(self.plan_state.snapshot(), request);
            let found = found.filter(|found| !stand_back.others_need(self.plan_state.snapshot(), request, found));
            let Some(found) = found else {
                self.plan_state.rollback(start);
                return false;
            };
            self.plan_state.place(id, request, found, Purpose::Serve);
        }
        true
    }

    /// The next requests of the queue, largest first and equal demands together. `None` if one of them could get more
    /// or less than it requests, since the queue order would then depend on that.
    fn queue_head(&self, limit: usize) -> Option<Vec<(RequestId, &'a Request)>> {
        let mut order = Order::new(self.state(), self.plan_state.snapshot().bundle, None);
        let mut head = Vec::with_capacity(limit.min(self.state().queued_len()));
        while head.len() < limit {
            let Some((id, request)) = order.next() else { break };
            if request.spec.members.is_some() || may_use_mig(&request.spec) {
                return None;
            }
            let amounts = Amounts::asked(&request.spec);
            order.count_placement(request.spec.tenant.as_str(), amounts);
            head.push((Reverse((amounts.gpu_milli, amounts.cpu_milli, amounts.memory_mib)), id, request));
        }
        head.sort_unstable_by(|(size, id, request), (other, other_id, other_request)| {
            let asked = || DemandKey::of(&request.spec).cmp(&DemandKey::of(&other_request.spec));
            size.cmp(other).then_with(asked).then_with(|| id.cmp(other_id))
        });
        Some(head.into_iter().map(|(_, id, request)| (id, request)).collect())
    }
}
