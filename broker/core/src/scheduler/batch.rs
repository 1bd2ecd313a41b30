//! Batch placement: re-places recent requests, largest first, to admit one more request or to waste less.
//!
//! All placements of a plan start at the same time, so the order among placed requests does not matter to them.
//! Fairness and priority have chosen the requests; only their places are reconsidered. The new placement is used only
//! if every request keeps at least its former amount, so no one is worse off than in plain order.

use crate::feasibility::donors::spread::Found;
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::id::RequestId;
use crate::model::proposal::ProposedPlacement;
use crate::model::request::Request;
use crate::scheduler::plan::Plan;
use crate::scheduler::planning::Planning;

/// Requests per batch.
pub(crate) const MAX_BATCH: usize = 64;
/// Attempts per plan to admit one more request.
pub(crate) const MAX_ADMIT_TRIES: usize = 2;

/// The requests placed since a given point of the plan.
pub(crate) struct Batch<'a> {
    /// Number of the plan's placements before the batch.
    first_placement: usize,
    /// Number of entries of [`Planning::placed`] before the batch.
    first_placed: usize,
    requests: Vec<(RequestId, &'a Request)>,
}

impl<'a> Batch<'a> {
    /// An empty batch that starts at the present end of `plan`.
    pub(crate) fn begin(planning: &Planning<'a, '_>, plan: &Plan) -> Self {
        let (first_placement, first_placed) = (plan.placements.len(), planning.placed.len());
        Self { first_placement, first_placed, requests: Vec::new() }
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

/// What repacking a batch must achieve.
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
        plan: &mut Plan,
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
        self.repack(plan, batch, requests, Goal::AdmitOneMore)
    }

    /// Re-places the batch if that wastes less. Returns whether it did.
    pub(crate) fn repack_batch(&mut self, plan: &mut Plan, batch: &Batch<'a>) -> bool {
        self.repack(plan, batch, batch.requests.clone(), Goal::WasteLess)
    }

    fn repack(
        &mut self,
        plan: &mut Plan,
        batch: &Batch<'a>,
        mut requests: Vec<(RequestId, &'a Request)>,
        goal: Goal,
    ) -> bool {
        requests.sort_by_key(|(_, request)| std::cmp::Reverse(demand_size(request)));
        let plain_order = batch.requests.iter().map(|(id, _)| *id);
        if requests.len() < 2 || requests.iter().map(|(id, _)| *id).take(batch.requests.len()).eq(plain_order) {
            return false;
        }
        let old = plan.placements.split_off(batch.first_placement);
        let old_placed = self.placed.split_off(batch.first_placed);
        let before = self.snapshot.clone();
        let reserved_before = self.reserved.as_ref().map(|reserved| reserved.snapshot.clone());
        self.update_views(|snapshot| old_placed.iter().for_each(|placed| snapshot.release(&placed.as_held())));
        old_placed.iter().for_each(|placed| self.refresh_index(&placed.candidate));
        let waste: i64 = old_placed.iter().map(|placed| placed.candidate.waste_milli).sum();
        let found = self.place_all(&requests, &old);
        let found = found.filter(|(_, new_waste)| goal == Goal::AdmitOneMore || *new_waste < waste);
        if let Some((proposals, _)) = found {
            plan.placements.extend(proposals);
            // Failed demands may fit now.
            self.failed.clear();
            return true;
        }
        let tried = self.placed.split_off(batch.first_placed);
        self.restore_snapshots(before, reserved_before);
        for placed in tried.iter().chain(&old_placed) {
            self.refresh_index(&placed.candidate);
        }
        plan.placements.extend(old);
        self.placed.extend(old_placed);
        false
    }

    /// Places all `requests` in this order, none with less than in `old`; returns the proposals and their waste.
    fn place_all(
        &mut self,
        requests: &[(RequestId, &'a Request)],
        old: &[ProposedPlacement],
    ) -> Option<(Vec<ProposedPlacement>, i64)> {
        let (mut proposals, mut waste) = (Vec::new(), 0_i64);
        for (id, request) in requests {
            let before = old.iter().find(|proposed| proposed.request == *id);
            let units_before: u64 = before
                .into_iter()
                .flat_map(ProposedPlacement::parts)
                .map(crate::model::placement::Placement::units)
                .sum();
            let found: Found = self.find(&request.spec, Some(request))?;
            if found.iter().map(|part| part.placement.units()).sum::<u64>() < units_before {
                return None;
            }
            waste = found.iter().fold(waste, |waste, part| waste.saturating_add(part.waste_milli));
            proposals.push(self.propose(*id, request, found));
        }
        Some((proposals, waste))
    }

    fn restore_snapshots(&mut self, snapshot: Snapshot<'a>, reserved: Option<Snapshot<'a>>) {
        self.snapshot = snapshot;
        if let (Some(reserved), Some(snapshot)) = (&mut self.reserved, reserved) {
            reserved.snapshot = snapshot;
        }
    }

    /// Updates the index for the nodes of a placement after the snapshots were restored.
    pub(crate) fn refresh_index(&mut self, candidate: &FeasiblePlacement) {
        let snapshot = self.reserved.as_ref().map_or(&self.snapshot, |reserved| &reserved.snapshot);
        self.index.update_nodes(snapshot, &candidate.placement);
    }
}
