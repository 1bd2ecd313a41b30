//! The scheduler: it plans placements for waiting requests.

use std::collections::BTreeSet;

use crate::feasibility::snapshot::Snapshot;
use crate::model::id::{ClusterId, NodeId, RequestId};
use crate::model::proposal::ProposedPlacement;
use crate::model::request::Request;
use crate::model::work::WorkMix;
use crate::scheduler::batch::{Batch, MAX_BATCH, MAX_TRIES};
use crate::scheduler::lookahead::Lookahead;
use crate::scheduler::misses::{RoomMisses, StartMisses};
use crate::scheduler::order::Order;
use crate::scheduler::placement_index::PlacementIndex;
use crate::scheduler::plan::Plan;
use crate::scheduler::planning::Planning;
use crate::scheduler::reservations::MAX_START_SEARCHES;
use crate::state::State;

/// Requests waiting this many times `reserve_after` jump the queue, at most one per that period.
pub const OVERDUE_AFTER: u64 = 8;

/// Plans again and again: what it knows of donors' nodes is kept from one plan to the next.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    index: PlacementIndex,
    start_misses: StartMisses,
    room_misses: RoomMisses,
    /// The gang for which room for more members was looked for last.
    grown_last: Option<RequestId>,
    /// What re-bases of log time had shifted when it planned last.
    shift_ms: i64,
}

impl Planner {
    /// A planner that expects `work`, which is known from before, until what comes says otherwise: it counts as much as
    /// it is like the work that comes.
    #[must_use]
    pub fn expecting(work: WorkMix) -> Self {
        Self { index: PlacementIndex::expecting(work), ..Self::default() }
    }

    /// A planner to look at one request more than the state holds.
    pub(crate) fn beside(request: &Request) -> Self {
        let mut planner = Self::default();
        planner.index.count_request(request);
        planner
    }

    /// Places up to `limit` waiting requests.
    #[must_use]
    pub fn plan(&mut self, state: &State, limit: usize) -> Plan {
        let mut plan = Plan { based_on: state.revision, ..Plan::default() };
        if let Some(mut run) = self.begin(state) {
            let most = limit.min(state.queued_len());
            plan.placements.reserve(most);
            run.placed.reserve(most);
            run.serve(&mut plan, limit);
        }
        plan
    }

    /// Begins a plan; `None` while no policy is in force.
    pub(crate) fn begin<'a>(&mut self, state: &'a State) -> Option<Planning<'a, '_>> {
        let snapshot = Snapshot::new(state)?;
        self.index.begin(&snapshot);
        if self.shift_ms != state.time_shift_ms {
            // What was tried when means nothing by another log time.
            (self.shift_ms, self.start_misses, self.room_misses) =
                (state.time_shift_ms, StartMisses::default(), RoomMisses::default());
        }
        self.room_misses.begin(state.log_time);
        Some(Planning {
            snapshot,
            hypothetical: None,
            reserved: None,
            index: &mut self.index,
            start_misses: &mut self.start_misses,
            room_misses: &mut self.room_misses,
            grown_last: &mut self.grown_last,
            looked_at: None,
            placed: Vec::new(),
            failed: BTreeSet::new(),
        })
    }

    /// The node of `donor` on which work without GPUs, local to it, would be least in the way of what is expected: CPU
    /// in thousandths of a core, main memory in MiB. `None` if it fits on none.
    #[must_use]
    pub fn advise(&mut self, state: &State, donor: &ClusterId, cpu_milli: u64, memory_mib: u64) -> Option<NodeId> {
        let snapshot = Snapshot::new(state)?;
        self.index.begin(&snapshot);
        self.index.advise(&snapshot, donor, cpu_milli, memory_mib)
    }

    /// Forgets what is known of nodes: what was planned did not hold.
    pub fn forget(&mut self) {
        self.index.forget();
        self.start_misses = StartMisses::default();
    }
}

/// Places up to `limit` waiting requests, once.
#[must_use]
pub fn plan(state: &State, limit: usize) -> Plan {
    Planner::default().plan(state, limit)
}

impl<'a> Planning<'a, '_> {
    /// Places up to `limit` waiting requests, in their order.
    pub(crate) fn serve(&mut self, plan: &mut Plan, limit: usize) {
        let mut order = Order::new(self.snapshot.state, self.snapshot.bundle, self.hypothetical);
        let mut served = self.enter_rooms(plan, limit);
        served.extend(self.overdue(plan, limit));
        for proposed in &plan.placements {
            let request = self.snapshot.state.requests.get(&proposed.request);
            request.into_iter().for_each(|request| order.placed(request.spec.tenant.as_str(), proposed.amounts()));
        }
        self.move_reclaimed(plan, limit);
        self.serve_in_order(plan, limit, (&mut order, &served));
        self.grow(plan, limit);
        self.check_repairs(plan);
    }

    /// Places those that wait as the order has them, in batches.
    fn serve_in_order(&mut self, plan: &mut Plan, limit: usize, (order, served): (&mut Order<'a>, &[RequestId])) {
        let mut lookahead = Lookahead::new(self.snapshot.state, self.hypothetical);
        let few = self.snapshot.state.queued_len() + usize::from(self.hypothetical.is_some()) <= MAX_BATCH;
        if !few && self.place_head_batch(plan, limit) {
            return;
        }
        let (mut batch, mut tries): (Option<Batch<'a>>, usize) = (None, 0);
        while plan.placements.len() < limit {
            let Some((id, request)) = order.next() else { break };
            if served.contains(&id) {
                continue;
            }
            // Where requests behind are looked at, where each lies depends on who is placed when: those are left alone.
            let behind = lookahead.behind(id, request);
            let alone = !behind.is_empty();
            batch = batch.filter(|batch| !alone && !batch.is_full());
            // Where none can be let in any more and nothing is tidied in the end, nobody asks for it.
            if !alone && batch.is_none() && (few || tries < MAX_TRIES) {
                batch = Some(Batch::begin(self, plan));
            }
            self.keep_a_place_for(behind);
            let placed = match self.best(request) {
                Some(found) => {
                    let proposed = self.propose(id, request, found);
                    plan.placements.push(proposed);
                    true
                }
                None => batch.as_ref().is_some_and(|batch| self.let_in(plan, batch, (id, request), &mut tries)),
            };
            if placed {
                let proposed = plan.placements.iter().rev().find(|proposed| proposed.request == id);
                proposed.into_iter().for_each(|it| order.placed(request.spec.tenant.as_str(), it.amounts()));
                batch.iter_mut().for_each(|batch| batch.add(id, request));
                continue;
            }
            plan.unplaced.push(id);
            let kept = self.reservations();
            if !self.make_room(plan, id, request) && plan.reserved.is_none() && self.has_waited(request, 1) {
                plan.reserved = self.reserve(id, request);
            }
            batch = batch.filter(|_| self.reservations() == kept);
        }
        self.keep_a_place_for(Vec::new());
        // Looking twice at what fits anyhow is for times when there is time.
        if let Some(batch) = batch.filter(|_| few) {
            self.tidy(plan, &batch);
        }
    }

    /// Serves the request that waits the longest, if that is far too long and the last such is some time ago: it is
    /// placed, or gets the reservation. So nobody waits for ever, whatever priorities and shares say; and seldom enough
    /// that they say who is served. The request, if it was placed.
    fn overdue(&mut self, plan: &mut Plan, limit: usize) -> Option<RequestId> {
        let state = self.snapshot.state;
        let pause = state.settings().reserve_after.0.saturating_mul(OVERDUE_AFTER);
        if plan.placements.len() >= limit || state.log_time.since(state.last_overdue).0 < pause {
            return None;
        }
        for (_, id) in &state.derived.queue.by_age {
            let request = state.requests.get(id)?;
            if plan.placements.iter().any(|placed| placed.request == *id) {
                continue;
            }
            if !self.has_waited(request, OVERDUE_AFTER)
                || self.looked_at.is_some_and(|count| count >= MAX_START_SEARCHES)
            {
                return None;
            }
            if let Some(found) = self.best(request) {
                let proposed = self.propose(*id, request, found);
                plan.placements.push(ProposedPlacement { overdue: true, ..proposed });
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
