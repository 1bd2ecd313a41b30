//! The planner: places waiting requests.

use comity_types::{ClusterId, NodeId, RequestId};

use crate::feasibility::snapshot::Snapshot;
use crate::model::request::Request;
use crate::model::work::WorkMix;
use crate::scheduler::batch::{Batch, MAX_ADMIT_TRIES, MAX_BATCH};
use crate::scheduler::lookahead::Lookahead;
use crate::scheduler::order::Order;
use crate::scheduler::placement_index::PlacementIndex;
use crate::scheduler::plan::Plan;
use crate::scheduler::plan_state::PlanState;
use crate::scheduler::plan_state::misses::LastingMisses;
use crate::scheduler::plan_state::placed::Purpose;
use crate::scheduler::planning::Planning;
use crate::scheduler::stand_back::StandBack;
use crate::state::State;

/// Requests waiting this many times `reserve_after` jump the queue, at most one per that period.
pub const OVERDUE_AFTER: u64 = 8;

/// Plans repeatedly; keeps its index of donors' nodes from plan to plan.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    index: PlacementIndex,
    misses: LastingMisses,
    /// The gang that a plan last tried to grow.
    last_grown: Option<RequestId>,
}

impl Planner {
    /// A planner that expects `work`, known from history, as far as observed work resembles it.
    #[must_use]
    pub fn expecting(work: WorkMix) -> Self {
        Self { index: PlacementIndex::expecting(work), ..Self::default() }
    }

    /// A planner for the state's requests and one hypothetical request.
    pub(crate) fn with_hypothetical(request: &Request) -> Self {
        let mut planner = Self::default();
        planner.index.count_request(request);
        planner
    }

    /// Places up to `limit` waiting requests.
    #[must_use]
    pub fn plan(&mut self, state: &State, limit: usize) -> Plan {
        let mut plan = Plan { based_on: state.revision, ..Plan::default() };
        if let Some(mut planning) = self.begin(state) {
            planning.serve(&mut plan, limit);
        }
        plan
    }

    /// Begins a plan; `None` while no policy is in force.
    pub(crate) fn begin<'a>(&mut self, state: &'a State) -> Option<Planning<'a, '_>> {
        let snapshot = Snapshot::new(state)?;
        let plan_state = PlanState::begin(snapshot, &mut self.index, &mut self.misses);
        Some(Planning { plan_state, hypothetical: None, last_grown: &mut self.last_grown })
    }

    /// The node of `donor` on which CPU-only local work would least obstruct expected work. CPU in thousandths of a
    /// core, main memory in MiB. `None` if the work fits on no node.
    #[must_use]
    pub fn advise(&mut self, state: &State, donor: &ClusterId, cpu_milli: u64, memory_mib: u64) -> Option<NodeId> {
        let snapshot = Snapshot::new(state)?;
        self.index.begin(&snapshot);
        self.index.advise(&snapshot, donor, cpu_milli, memory_mib)
    }

    /// Forgets all nodes. Call this when a plan was not applied.
    pub fn forget(&mut self) {
        self.index.forget();
        self.misses.forget_starts();
    }
}

/// Places up to `limit` waiting requests, with a fresh planner.
#[must_use]
pub fn plan(state: &State, limit: usize) -> Plan {
    Planner::default().plan(state, limit)
}

impl<'a> Planning<'a, '_> {
    /// Fills `plan` with up to `limit` placements, and with reclaims.
    pub(crate) fn serve(&mut self, plan: &mut Plan, limit: usize) {
        let mut order = Order::new(self.state(), self.plan_state.snapshot().bundle, self.hypothetical);
        let mut served = self.serve_room_waiters(limit);
        served.extend(self.serve_overdue(plan, limit));
        for placed in self.plan_state.placed() {
            order.count_placement(placed.request.spec.tenant.as_str(), placed.amounts());
        }
        self.replace_reclaimed(limit);
        self.serve_in_order(plan, limit, &mut order, &served);
        self.grow_gangs(limit);
        self.drop_invalid_migrations(plan);
        plan.placements = self.plan_state.proposals();
    }

    /// Places waiting requests in queue order, in batches. Skips those already `served`.
    fn serve_in_order(&mut self, plan: &mut Plan, limit: usize, order: &mut Order<'a>, served: &[RequestId]) {
        let mut lookahead = Lookahead::new(self.state(), self.hypothetical);
        let few = self.state().queued_len() + usize::from(self.hypothetical.is_some()) <= MAX_BATCH;
        let mut stand_back = StandBack::new(self.plan_state.snapshot(), self.hypothetical, served);
        if !few && self.place_head_batch(limit, &stand_back) {
            return;
        }
        let (mut batch, mut tries): (Option<Batch<'a>>, usize) = (None, 0);
        while self.plan_state.placed().len() < limit {
            let Some((id, request)) = order.next() else { break };
            if served.contains(&id) {
                continue;
            }
            // With lookahead, the place of a request depends on when it is placed, so such requests stay out of
            // batches.
            let behind = lookahead.behind(id, request);
            let has_lookahead = !behind.is_empty();
            batch = batch.filter(|batch| !has_lookahead && !batch.is_full());
            // A batch is pointless once no attempt remains and none will be repacked at the end.
            if !has_lookahead && batch.is_none() && (few || tries < MAX_ADMIT_TRIES) {
                batch = Some(Batch::begin(&self.plan_state));
            }
            self.plan_state.set_lookahead(&behind);
            let found = self.find_unless_failed(request);
            if stand_back.defers(self.plan_state.snapshot(), id, request, found.as_ref()) {
                continue;
            }
            let placed = match found {
                Some(found) => {
                    self.plan_state.place(id, request, found, Purpose::Serve);
                    true
                }
                None => batch.as_ref().is_some_and(|batch| self.admit_with_batch(batch, id, request, &mut tries)),
            };
            if placed {
                let placed = self.plan_state.placed().iter().rev().find(|placed| placed.id == id);
                placed.into_iter().for_each(|it| order.count_placement(request.spec.tenant.as_str(), it.amounts()));
                batch.iter_mut().for_each(|batch| batch.add(id, request));
                continue;
            }
            plan.unplaced.push(id);
            if !self.reclaim_for(plan, id, request) && plan.reserved.is_none() && self.has_waited(request, 1) {
                plan.reserved = self.reserve(id, request);
            }
            batch = batch.filter(|batch| !self.plan_state.has_reserved_since(batch.start()));
        }
        self.plan_state.set_lookahead(&[]);
        self.serve_borrowers(plan, limit, stand_back);
        // Repack only short queues: in long ones, there is no time to search twice.
        if let Some(batch) = batch.filter(|_| few) {
            self.repack_batch(&batch);
        }
    }

    /// Places the requests that stood back for others.
    fn serve_borrowers(&mut self, plan: &mut Plan, limit: usize, stand_back: StandBack<'a>) {
        for (id, request) in stand_back.into_requests() {
            if self.plan_state.placed().len() >= limit {
                break;
            }
            match self.find_unless_failed(request) {
                Some(found) => self.plan_state.place(id, request, found, Purpose::Serve),
                None => {
                    plan.unplaced.push(id);
                    self.reclaim_for(plan, id, request);
                }
            }
        }
    }

    /// Serves the longest-waiting request out of turn if it is overdue and the last such request was long enough ago:
    /// places it or reserves capacity for it. So no request starves, whatever priorities and shares say, and this is
    /// rare enough for them to prevail otherwise. Returns the request if it was placed.
    fn serve_overdue(&mut self, plan: &mut Plan, limit: usize) -> Option<RequestId> {
        let state = self.state();
        let pause = state.settings().reserve_after.0.saturating_mul(OVERDUE_AFTER);
        if self.plan_state.placed().len() >= limit || state.log_time.since(state.last_overdue).0 < pause {
            return None;
        }
        for (_, id) in &state.derived.queue.by_age {
            let request = state.requests.get(id)?;
            if self.plan_state.placed().iter().any(|placed| placed.id == *id) {
                continue;
            }
            if !self.has_waited(request, OVERDUE_AFTER) || self.plan_state.misses.start_budget_is_spent() {
                return None;
            }
            if let Some(found) = self.find_unless_failed(request) {
                self.plan_state.place(*id, request, found, Purpose::ServeOverdue);
                return Some(*id);
            }
            plan.reserved = self.reserve(*id, request);
            if plan.reserved.is_some() {
                return None;
            }
        }
        None
    }
}
