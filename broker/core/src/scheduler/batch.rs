//! Requests that are placed together: the same ones, the largest first, where that lets in one more or leaves less
//! idle.
//!
//! Everything of one plan begins at the same time, so to those that are placed either way it does not matter who was
//! placed first: fairness and priority have said who, and only where is tried again. A new way is taken only if nobody
//! of the old one is left out or gets less, so the plain order is never worse for anyone.

use crate::feasibility::donors::spread::Found;
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::id::RequestId;
use crate::model::proposal::ProposedPlacement;
use crate::model::request::Request;
use crate::scheduler::plan::Plan;
use crate::scheduler::planning::Planning;

/// Requests that are placed again together.
pub(crate) const MAX_BATCH: usize = 64;
/// Times that one plan tries to let one more in.
pub(crate) const MAX_TRIES: usize = 2;

/// What was placed since a plan stood so.
pub(crate) struct Batch<'a> {
    /// From where on its placements are in the plan, and among what is placed.
    first: usize,
    first_placed: usize,
    requests: Vec<(RequestId, &'a Request)>,
}

impl<'a> Batch<'a> {
    /// Nothing placed since `run` and `plan` stand so.
    pub(crate) fn begin(run: &Planning<'a, '_>, plan: &Plan) -> Self {
        Self { first: plan.placements.len(), first_placed: run.placed.len(), requests: Vec::new() }
    }

    /// Counts in what was placed last.
    pub(crate) fn add(&mut self, id: RequestId, request: &'a Request) {
        self.requests.push((id, request));
    }

    /// Whether no more may be added.
    pub(crate) fn is_full(&self) -> bool {
        self.requests.len() >= MAX_BATCH
    }
}

/// Thousandths of devices, of cores, and memory that a request asks for: the largest is placed first.
fn size(request: &Request) -> (u64, u64, u64) {
    let asked = crate::model::amounts::Amounts::asked(&request.spec);
    (asked.gpu_milli, asked.cpu_milli, asked.memory_mib)
}

impl<'a> Planning<'a, '_> {
    /// Places the batch again, the largest first, together with a request that did not fit behind it; true if that is
    /// in now.
    pub(crate) fn let_in(
        &mut self,
        plan: &mut Plan,
        batch: &Batch<'a>,
        more: (RequestId, &'a Request),
        tries: &mut usize,
    ) -> bool {
        if batch.requests.is_empty() || *tries >= MAX_TRIES {
            return false;
        }
        *tries += 1;
        let mut turn = batch.requests.clone();
        turn.push(more);
        self.place_again(plan, batch, turn, false)
    }

    /// Places the batch again, the largest first, if that leaves less idle.
    pub(crate) fn tidy(&mut self, plan: &mut Plan, batch: &Batch<'a>) -> bool {
        self.place_again(plan, batch, batch.requests.clone(), true)
    }

    fn place_again(
        &mut self,
        plan: &mut Plan,
        batch: &Batch<'a>,
        mut turn: Vec<(RequestId, &'a Request)>,
        must_waste_less: bool,
    ) -> bool {
        turn.sort_by_key(|(_, request)| std::cmp::Reverse(size(request)));
        let plain = batch.requests.iter().map(|(id, _)| *id);
        if turn.len() < 2 || turn.iter().map(|(id, _)| *id).take(batch.requests.len()).eq(plain) {
            return false;
        }
        let old = plan.placements.split_off(batch.first);
        let old_placed = self.placed.split_off(batch.first_placed);
        let seen = (self.snapshot.clone(), self.reserved.as_ref().map(|reserved| reserved.snapshot.clone()));
        self.each_view(|snapshot| old_placed.iter().for_each(|placed| snapshot.release(&placed.held())));
        old_placed.iter().for_each(|placed| self.look_again(&placed.candidate));
        let waste: i64 = old_placed.iter().map(|placed| placed.candidate.waste_milli).sum();
        let found = self.place_all(&turn, &old).filter(|(_, new)| !must_waste_less || *new < waste);
        if let Some((proposals, _)) = found {
            plan.placements.extend(proposals);
            // There may be room now where there was none.
            self.failed.clear();
            return true;
        }
        let tried = self.placed.split_off(batch.first_placed);
        self.see(seen.0, seen.1);
        for placed in tried.iter().chain(&old_placed) {
            self.look_again(&placed.candidate);
        }
        plan.placements.extend(old);
        self.placed.extend(old_placed);
        false
    }

    /// Places all of those, in this order, none with less than it had; and what that leaves idle.
    fn place_all(
        &mut self,
        turn: &[(RequestId, &'a Request)],
        old: &[ProposedPlacement],
    ) -> Option<(Vec<ProposedPlacement>, i64)> {
        let (mut proposals, mut waste) = (Vec::new(), 0_i64);
        for (id, request) in turn {
            let had = old.iter().find(|proposed| proposed.request == *id);
            let had: u64 =
                had.into_iter().flat_map(ProposedPlacement::parts).map(crate::model::placement::Placement::units).sum();
            let found: Found = self.find(&request.spec, Some(request))?;
            if found.iter().map(|part| part.placement.units()).sum::<u64>() < had {
                return None;
            }
            waste = found.iter().fold(waste, |waste, part| waste.saturating_add(part.waste_milli));
            proposals.push(self.propose(*id, request, found));
        }
        Some((proposals, waste))
    }

    fn see(&mut self, snapshot: Snapshot<'a>, reserved: Option<Snapshot<'a>>) {
        self.snapshot = snapshot;
        if let (Some(reserved), Some(snapshot)) = (&mut self.reserved, reserved) {
            reserved.snapshot = snapshot;
        }
    }

    /// The nodes of a placement count as they are seen now.
    pub(crate) fn look_again(&mut self, candidate: &FeasiblePlacement) {
        let snapshot = self.reserved.as_ref().map_or(&self.snapshot, |reserved| &reserved.snapshot);
        self.index.update_nodes(snapshot, &candidate.placement);
    }
}
