//! Batch placement: re-places recent requests, largest first, to admit one more request or to waste less.
//!
//! All placements of a plan start at the same time, so the order among placed requests does not matter to them.
//! Fairness and priority have chosen the requests; only their places are reconsidered. The new placement is used only
//! if every request keeps at least its former amount, so no one is worse off than in plain order.

use comity_types::RequestId;

use crate::feasibility::donors::spread::Found;
use crate::model::request::Request;
use crate::scheduler::plan_state::placed::{Placed, Purpose};
use crate::scheduler::plan_state::{Checkpoint, PlanState};
use crate::scheduler::planning::Planning;

/// Requests per batch.
pub(crate) const MAX_BATCH: usize = 64;
/// Attempts per plan to admit one more request.
pub(crate) const MAX_ADMIT_TRIES: usize = 2;

/// The requests placed since a given point of the plan.
pub(crate) struct Batch<'a> {
    start: Checkpoint,
    requests: Vec<(RequestId, &'a Request)>,
}

impl<'a> Batch<'a> {
    /// An empty batch that starts at the present point of the plan.
    pub(crate) fn begin(plan_state: &PlanState<'a, '_>) -> Self {
        Self { start: plan_state.checkpoint(), requests: Vec::new() }
    }

    /// The point of the plan before the batch.
    pub(crate) fn start(&self) -> Checkpoint {
        self.start
    }

    /// Adds the request placed last.
    pub(crate) fn add(&mut self, id: RequestId, request: &'a Request) {
        self.requests.push((id, request));
    }

    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() >= MAX_BATCH
    }
}

/// Thousandths of devices, thousandths of cores, and memory: batches are placed in descending order of this.
fn demand_size(request: &Request) -> (u64, u64, u64) {
    let asked = crate::model::amounts::Amounts::asked(&request.spec);
    (asked.gpu_milli, asked.cpu_milli, asked.memory_mib)
}

/// Condition under which a repacked batch replaces the original one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Place the batch together with one more request.
    AdmitOneMore,
    /// Waste less than the batch does now.
    WasteLess,
}

impl<'a> Planning<'a, '_> {
    /// Re-places the batch together with `id`, which did not fit behind it. Returns whether that succeeded.
    pub(crate) fn admit_with_batch(
        &mut self,
        batch: &Batch<'a>,
        id: RequestId,
        request: &'a Request,
        tries: &mut usize,
    ) -> bool {
        if batch.requests.is_empty() || *tries >= MAX_ADMIT_TRIES {
            return false;
        }
        *tries += 1;
        let mut requests = batch.requests.clone();
        requests.push((id, request));
        self.repack(batch, requests, Goal::AdmitOneMore)
    }

    /// Re-places the batch if that wastes less. Returns whether it did.
    pub(crate) fn repack_batch(&mut self, batch: &Batch<'a>) -> bool {
        self.repack(batch, batch.requests.clone(), Goal::WasteLess)
    }

    fn repack(&mut self, batch: &Batch<'a>, mut requests: Vec<(RequestId, &'a Request)>, goal: Goal) -> bool {
        requests.sort_by_key(|(_, request)| std::cmp::Reverse(demand_size(request)));
        let plain_order = batch.requests.iter().map(|(id, _)| *id);
        if requests.len() < 2 || requests.iter().map(|(id, _)| *id).take(batch.requests.len()).eq(plain_order) {
            return false;
        }
        let undone = self.plan_state.rollback(batch.start);
        let waste: i64 = undone.placed.iter().flat_map(|placed| &placed.parts).map(|part| part.waste_milli).sum();
        let new_waste = self.place_all(&requests, &undone.placed);
        if new_waste.is_some_and(|new_waste| goal == Goal::AdmitOneMore || new_waste < waste) {
            return true;
        }
        self.plan_state.rollback(batch.start);
        self.plan_state.replay(undone);
        false
    }

    /// Places all `requests` in this order, none with less than in `old`; returns their waste.
    fn place_all(&mut self, requests: &[(RequestId, &'a Request)], old: &[Placed<'a>]) -> Option<i64> {
        let mut waste = 0_i64;
        for (id, request) in requests {
            let units_before = old.iter().find(|placed| placed.id == *id).map_or(0, Placed::units);
            let found: Found = self.plan_state.find(&request.spec, Some(request))?;
            if found.iter().map(|part| part.placement.units()).sum::<u64>() < units_before {
                return None;
            }
            waste = found.iter().fold(waste, |waste, part| waste.saturating_add(part.waste_milli));
            self.plan_state.place(*id, request, found, Purpose::Serve);
        }
        Some(waste)
    }
}
