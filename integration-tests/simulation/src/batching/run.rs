//! The broker in log time, work that comes and ends, and agents that do at once what they are asked.

use std::collections::BTreeMap;

use comity_core::command::{LeaseOutcome, ReleaseLease};
use comity_core::demand::RequestSpec;
use comity_core::lease::LeaseState;
use comity_core::limits::MAX_PLACEMENTS_PER_PLAN;
use comity_core::packing::Task;
use comity_core::reclaim::Preemptible;
use comity_core::scheduler::spared;
use comity_core::{Command, LeaseId, Millis, Refusal, RequestId, Timestamp};

use super::arrivals::Arrival;
use super::books::Books;
use super::report::Figures;
use super::{HOUR, MINUTE, PATIENCE, SETTLING, STEP, Way};
use crate::broker::{Broker, Member, Reclaimed};
use crate::trace::Trace;

/// Index of the member that asks.
const ORIGIN: usize = 0;
/// Index of the member that has the nodes.
const DONOR: usize = 1;
/// Notice that work that may move asks for. Where a lease has a new place it moves as soon as its work is saved.
const GRACE: Millis = Millis(10 * MINUTE);

/// One way to serve.
pub(super) struct Run {
    broker: Broker,
    way: Way,
    began: u64,
    ends: u64,
    /// Whose work ends when.
    work: BTreeMap<u64, Vec<RequestId>>,
    books: Books,
}

impl Run {
    /// Idle nodes.
    pub(super) fn new(trace: &Trace, tasks: &[Task], way: Way, days: u64) -> Result<Self, Refusal> {
        let origin = Member { name: "origin".to_owned(), nodes: Vec::new() };
        let donor = Member { name: "donor".to_owned(), nodes: trace.nodes.values().collect() };
        let broker = Broker::new(&[origin, donor], tasks)?;
        let began = broker.now().0;
        let ends = began + SETTLING + days * 24 * HOUR;
        let books = Books::new(trace.capacity_milli(), began + SETTLING, ends);
        Ok(Self { broker, way, began, ends, work: BTreeMap::new(), books })
    }

    /// Serves the arrivals, which come in order of time.
    pub(super) fn serve(mut self, arrivals: &[Arrival<'_>]) -> Result<Figures, Refusal> {
        let mut next = arrivals.iter().peekable();
        let mut now = self.began;
        while now <= self.ends + PATIENCE {
            self.pass(Timestamp(now))?;
            while let Some(arrival) = next.next_if(|arrival| self.began + arrival.at <= now) {
                self.ask(arrival, now)?;
            }
            self.settle()?;
            self.books.sample(&self.broker.state, self.broker.cluster(DONOR), now, STEP);
            now += STEP;
        }
        Ok(self.books.figures())
    }

    fn ask(&mut self, arrival: &Arrival<'_>, now: u64) -> Result<(), Refusal> {
        let moves = self.way == Way::Moved && arrival.may_move;
        let preemptible = moves.then_some(Preemptible { grace: GRACE, checkpoint: true });
        let start_by = Some(Timestamp(now + PATIENCE));
        let change = |spec: RequestSpec| RequestSpec { start_by, preemptible, ..spec };
        let request = self.broker.submit_for(ORIGIN, arrival.task, Millis(arrival.lasts), change)?;
        self.books.asked(request, arrival, now);
        Ok(())
    }

    /// Lets time pass up to `now`, and what is due in it happen: leases and waits run out, and work ends, also that
    /// which has moved and could stay for longer.
    fn pass(&mut self, now: Timestamp) -> Result<(), Refusal> {
        while let Some(due) = self.broker.due(now) {
            self.broker.pass(due);
            self.broker.expire()?;
        }
        self.broker.pass(now);
        let later = self.work.split_off(&(now.0 + 1));
        for request in std::mem::replace(&mut self.work, later).into_values().flatten() {
            self.end(request)?;
        }
        self.clear()
    }

    fn end(&mut self, id: RequestId) -> Result<(), Refusal> {
        let Some(request) = self.broker.state.requests.get(&id) else { return Ok(()) };
        let leases: Vec<LeaseId> = request.chains(&self.broker.state).flatten().collect();
        for lease in leases.into_iter().rev() {
            self.broker.apply(Command::ReleaseLease(ReleaseLease { lease }))?;
        }
        Ok(())
    }

    /// Agents take down what ends.
    fn clear(&mut self) -> Result<(), Refusal> {
        for lease in self.broker.ending() {
            self.broker.report(lease, &LeaseOutcome::Clean)?;
        }
        Ok(())
    }

    /// Plans, reclaims, moves and spares until nothing more happens, as the leader's loop does.
    fn settle(&mut self) -> Result<(), Refusal> {
        let limit = if self.way == Way::OneByOne { 1 } else { MAX_PLACEMENTS_PER_PLAN };
        loop {
            let revision = self.broker.state.revision;
            let stay = self.broker.reclaim(spared(&self.broker.state), Vec::new())?.spared;
            self.books.spared(&stay);
            let plan = self.broker.plan(limit);
            let placed = if plan.placements.is_empty() { Vec::new() } else { self.broker.place(plan.placements)? };
            self.books.proposed(&self.broker.state, &plan.reclaims);
            let Reclaimed { leases, .. } = self.broker.reclaim(Vec::new(), plan.reclaims.clone())?;
            self.books.reclaimed(&leases, &plan.reclaims);
            for lease in placed {
                self.broker.report_ready(lease)?;
                self.note(lease);
            }
            for lease in self.moved() {
                self.broker.report_saved(lease)?;
            }
            self.clear()?;
            self.books.look(&self.broker.state);
            if self.broker.state.revision == revision {
                return Ok(());
            }
        }
    }

    /// A lease was made: for a request that waited, or for work that moves.
    fn note(&mut self, id: LeaseId) {
        let Some(lease) = self.broker.state.leases.get(&id).filter(|lease| lease.moved_from.is_none()) else { return };
        let now = self.broker.now().0;
        if let Some(lasts) = self.books.placed(lease.request, now) {
            self.work.entry(now + lasts).or_default().push(lease.request);
        }
    }

    /// Leases that are being reclaimed and whose new places are ready.
    fn moved(&self) -> Vec<LeaseId> {
        let ready =
            |id: LeaseId| self.broker.state.leases.get(&id).is_some_and(|lease| lease.state == LeaseState::Active);
        let moved = self.broker.state.reclaiming().filter(|(_, lease)| lease.moved_to.is_some_and(ready));
        moved.map(|(id, _)| id).collect()
    }
}
