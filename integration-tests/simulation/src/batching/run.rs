//! Runs the broker in simulated time while work arrives and ends; agents carry out orders at once.

use std::collections::BTreeMap;

use comity_core::command::{LeaseOutcome, ReleaseLease};
use comity_core::demand::Preemptible;
use comity_core::demand::RequestSpec;
use comity_core::feasibility::spared;
use comity_core::limits::MAX_PLACEMENTS_PER_PLAN;
use comity_core::packing::Task;
use comity_core::{Command, Millis, Refusal, Timestamp};
use comity_types::{LeaseId, LeaseState, RequestId};

use super::batching_report::BatchingFigures;
use super::counters::Counters;
use super::request_arrivals::RequestArrival;
use super::{PLAN_INTERVAL, QUEUE_TIMEOUT, Strategy, WARM_UP};
use crate::broker::{Broker, DONOR, ORIGIN, Reclaimed};
use crate::time::{HOUR, MINUTE};
use crate::trace::Trace;

/// Notice period of preemptible requests. A lease with a new place moves as soon as its work is saved.
const GRACE: Millis = Millis(10 * MINUTE);

/// One run of one strategy.
pub(super) struct Run {
    broker: Broker,
    strategy: Strategy,
    began: u64,
    ends: u64,
    /// Requests by the time at which their work ends.
    work: BTreeMap<u64, Vec<RequestId>>,
    counters: Counters,
}

impl Run {
    /// Starts with idle nodes.
    pub(super) fn new(trace: &Trace, tasks: &[Task], strategy: Strategy, days: u64) -> Result<Self, Refusal> {
        let broker = Broker::with_one_donor(trace, tasks)?;
        let began = broker.now().0;
        let ends = began + WARM_UP + days * 24 * HOUR;
        let counters = Counters::new(trace.capacity_milli(), began + WARM_UP, ends);
        Ok(Self { broker, strategy, began, ends, work: BTreeMap::new(), counters })
    }

    /// Serves the arrivals, which must be in order of time.
    pub(super) fn serve(mut self, arrivals: &[RequestArrival<'_>]) -> Result<BatchingFigures, Refusal> {
        let mut next = arrivals.iter().peekable();
        let mut now = self.began;
        while now <= self.ends + QUEUE_TIMEOUT {
            self.advance_to(Timestamp(now))?;
            while let Some(arrival) = next.next_if(|arrival| self.began + arrival.at <= now) {
                self.submit(arrival, now)?;
            }
            self.settle()?;
            self.counters.sample(&self.broker.state, self.broker.cluster(DONOR), now, PLAN_INTERVAL);
            now += PLAN_INTERVAL;
        }
        Ok(self.counters.figures())
    }

    fn submit(&mut self, arrival: &RequestArrival<'_>, now: u64) -> Result<(), Refusal> {
        let moves = self.strategy == Strategy::Moved && arrival.may_move;
        let preemptible = moves.then_some(Preemptible { grace: GRACE, checkpoint: true, same_gpu_type: false });
        let start_by = Some(Timestamp(now + QUEUE_TIMEOUT));
        let change = |spec: RequestSpec| RequestSpec { start_by, preemptible, ..spec };
        let request = self.broker.submit_for(ORIGIN, arrival.task, Millis(arrival.lasts), change)?;
        self.counters.submitted(request, arrival, now);
        Ok(())
    }

    /// Advances to `now`: expires leases and queued requests that are due, and releases leases whose work has ended,
    /// even those that moved and could stay longer.
    fn advance_to(&mut self, now: Timestamp) -> Result<(), Refusal> {
        while let Some(due) = self.broker.next_due_until(now) {
            self.broker.advance_to(due);
            self.broker.expire()?;
        }
        self.broker.advance_to(now);
        let later = self.work.split_off(&(now.0 + 1));
        for request in std::mem::replace(&mut self.work, later).into_values().flatten() {
            self.end(request)?;
        }
        self.report_teardowns()
    }

    fn end(&mut self, id: RequestId) -> Result<(), Refusal> {
        let Some(request) = self.broker.state.requests.get(&id) else { return Ok(()) };
        let leases: Vec<LeaseId> = request.chains(&self.broker.state).flatten().collect();
        for lease in leases.into_iter().rev() {
            self.broker.apply(Command::ReleaseLease(ReleaseLease { lease }))?;
        }
        Ok(())
    }

    /// Reports the teardown of every ending lease.
    fn report_teardowns(&mut self) -> Result<(), Refusal> {
        for lease in self.broker.ending() {
            self.broker.report(lease, &LeaseOutcome::Clean)?;
        }
        Ok(())
    }

    /// Plans, reclaims, moves and spares until the state is stable, as the leader's loop does.
    fn settle(&mut self) -> Result<(), Refusal> {
        let limit = if self.strategy == Strategy::OneByOne { 1 } else { MAX_PLACEMENTS_PER_PLAN };
        loop {
            let revision = self.broker.state.revision;
            let stay = self.broker.reclaim(spared(&self.broker.state), Vec::new())?.spared;
            self.counters.spared(&stay);
            let plan = self.broker.plan(limit);
            let placed = if plan.placements.is_empty() { Vec::new() } else { self.broker.place(plan.placements)? };
            self.counters.proposed(&self.broker.state, &plan.reclaims);
            let Reclaimed { leases, .. } = self.broker.reclaim(Vec::new(), plan.reclaims.clone())?;
            self.counters.reclaimed(&leases, &plan.reclaims);
            for lease in placed {
                self.broker.report_ready(lease)?;
                self.record_placement(lease);
            }
            for lease in self.moved() {
                self.broker.report_saved(lease)?;
            }
            self.report_teardowns()?;
            self.counters.record_finished_moves(&self.broker.state);
            if self.broker.state.revision == revision {
                return Ok(());
            }
        }
    }

    /// Counts the first lease of a request and schedules the end of its work; ignores leases of moved work.
    fn record_placement(&mut self, id: LeaseId) {
        let Some(lease) = self.broker.state.leases.get(&id).filter(|lease| lease.moved_from.is_none()) else { return };
        let now = self.broker.now().0;
        if let Some(lasts) = self.counters.placed(lease.request, now) {
            self.work.entry(now + lasts).or_default().push(lease.request);
        }
    }

    /// Leases being reclaimed whose new places are ready.
    fn moved(&self) -> Vec<LeaseId> {
        let ready =
            |id: LeaseId| self.broker.state.leases.get(&id).is_some_and(|lease| lease.state == LeaseState::Active);
        let moved = self.broker.state.reclaiming().filter(|(_, lease)| lease.moved_to.is_some_and(ready));
        moved.map(|(id, _)| id).collect()
    }
}
