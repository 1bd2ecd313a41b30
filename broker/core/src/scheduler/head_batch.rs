//! The next of a long queue, placed in an order of their own when all of them fit.
//!
//! As in a [batch](crate::scheduler::batch), everything of one plan begins at the same time, so to those that are placed either
//! way it does not matter who was placed first. Of a long queue as many as one plan may hold are placed the largest
//! first, and those that ask for the same one after the other: what a large gang needs is not broken into by what comes
//! before it, and what was found for one says where the next one goes. If one of them fits nowhere, nothing of this is
//! kept, and who comes first is served first.

use std::cmp::Reverse;

use crate::feasibility::demand_key::DemandKey;
use crate::model::amounts::Amounts;
use crate::model::id::RequestId;
use crate::model::request::Request;
use crate::scheduler::lookahead::may_be_slices;
use crate::scheduler::order::Order;
use crate::scheduler::plan::Plan;
use crate::scheduler::planning::Planning;

impl<'a> Planning<'a, '_> {
    /// Places the next `limit` of those that wait; false, and nothing is changed, if they do not all fit, or if
    /// something is placed or kept free already.
    pub(crate) fn place_head_batch(&mut self, plan: &mut Plan, limit: usize) -> bool {
        if self.reserved.is_some() || self.hypothetical.is_some() || !plan.placements.is_empty() {
            return false;
        }
        let Some(turn) = self.queue_head(limit) else { return false };
        let seen = self.snapshot.clone();
        for (id, request) in turn {
            let Some(found) = self.best(request) else {
                self.undo(plan, seen);
                return false;
            };
            let proposed = self.propose(id, request, found);
            plan.placements.push(proposed);
        }
        true
    }

    /// Those whose turn it is, the largest first and the same ones together; `None` where what one gets may be more or
    /// less than it asks for: then whose turn is next depends on it.
    fn queue_head(&self, limit: usize) -> Option<Vec<(RequestId, &'a Request)>> {
        let mut order = Order::new(self.snapshot.state, self.snapshot.bundle, None);
        let mut turn = Vec::with_capacity(limit.min(self.snapshot.state.queued_len()));
        while turn.len() < limit {
            let Some((id, request)) = order.next() else { break };
            if request.spec.members.is_some() || may_be_slices(&request.spec) {
                return None;
            }
            let amounts = Amounts::asked(&request.spec);
            order.placed(request.spec.tenant.as_str(), amounts);
            turn.push((Reverse((amounts.gpu_milli, amounts.cpu_milli, amounts.memory_mib)), id, request));
        }
        turn.sort_unstable_by(|(size, id, request), (other, other_id, other_request)| {
            let asked = || DemandKey::of(&request.spec).cmp(&DemandKey::of(&other_request.spec));
            size.cmp(other).then_with(asked).then_with(|| id.cmp(other_id))
        });
        Some(turn.into_iter().map(|(_, id, request)| (id, request)).collect())
    }

    /// As it was when nothing was placed.
    fn undo(&mut self, plan: &mut Plan, seen: crate::feasibility::snapshot::Snapshot<'a>) {
        plan.placements.clear();
        self.snapshot = seen;
        for placed in std::mem::take(&mut self.placed) {
            self.look_again(&placed.candidate);
        }
        // There is more room than where it failed.
        self.failed.clear();
    }
}
