//! The leader's proposal: placements for what waits.

use std::collections::BTreeSet;

use comity_policy::LeaseUse;

use crate::feasibility::demand_key::Asked;
use crate::feasibility::donors::best::best;
use crate::feasibility::donors::promise::promising_nothing;
use crate::feasibility::donors::spread::Found;
use crate::feasibility::fit::Wanted;
use crate::feasibility::snapshot::{Held, View};
use crate::feasibility::verdict::Candidate;
use crate::model::demand::RequestSpec;
use crate::model::id::{ClusterId, NodeId, RequestId};
use crate::model::placement::Placement;
use crate::model::proposal::{Aim, ProposedPlacement, ProposedReclaim};
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::model::work::WorkMix;
use crate::scheduler::ahead::Ahead;
use crate::scheduler::batch::{Batch, MAX_BATCH, MAX_TRIES};
use crate::scheduler::hopeless::Hopeless;
use crate::scheduler::kept::Strict;
use crate::scheduler::make_room::Fruitless;
use crate::scheduler::order::{AsIf, Order};
use crate::scheduler::packs::Packs;
use crate::scheduler::reserve::{Reserved, Start, earliest, end_if_placed, held};
use crate::state::State;

/// So many times the time after which capacity is reserved, and a request is served before its turn; one such in as
/// long.
pub const OVERDUE_AFTER: u64 = 8;
/// Requests for which one plan looks for a start before it gives up: each takes a look at all that is held.
pub(crate) const MAX_LOOKED_AT: usize = 16;

/// What to propose. It was made from one revision; `apply` checks each placement again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Revision it was made from.
    pub based_on: u64,
    /// Placements in the order in which requests were served.
    pub placements: Vec<ProposedPlacement>,
    /// Requests that fit nowhere now; [`explain`](crate::explain::explain) says why.
    pub unplaced: Vec<RequestId>,
    /// The request, if there is one, that others pass only if they do not delay it.
    pub reserved: Option<Reserved>,
    /// Leases to reclaim for requests that may preempt and fit nowhere.
    pub reclaims: Vec<ProposedReclaim>,
}

/// Plans again and again: what it knows of donors' nodes is kept from one plan to the next.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    packs: Packs,
    hopeless: Hopeless,
    fruitless: Fruitless,
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
        Self { packs: Packs::expecting(work), ..Self::default() }
    }

    /// A planner to look at one request more than the state holds.
    pub(crate) fn beside(request: &Request) -> Self {
        let mut planner = Self::default();
        planner.packs.count_in(request);
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
    pub(crate) fn begin<'a>(&mut self, state: &'a State) -> Option<Run<'a, '_>> {
        let view = View::new(state)?;
        self.packs.begin(&view);
        if self.shift_ms != state.time_shift_ms {
            // What was tried when means nothing by another log time.
            (self.shift_ms, self.hopeless, self.fruitless) =
                (state.time_shift_ms, Hopeless::default(), Fruitless::default());
        }
        self.fruitless.begin(state.log_time);
        Some(Run {
            view,
            as_if: None,
            strict: None,
            packs: &mut self.packs,
            hopeless: &mut self.hopeless,
            fruitless: &mut self.fruitless,
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
        let view = View::new(state)?;
        self.packs.begin(&view);
        self.packs.advise(&view, donor, cpu_milli, memory_mib)
    }

    /// Forgets what is known of nodes: what was planned did not hold.
    pub fn forget(&mut self) {
        self.packs.forget();
        self.hopeless = Hopeless::default();
    }
}

/// Places up to `limit` waiting requests, once.
#[must_use]
pub fn plan(state: &State, limit: usize) -> Plan {
    Planner::default().plan(state, limit)
}

/// One plan being made.
pub(crate) struct Run<'a, 'p> {
    /// What is lent, and what this plan has placed.
    pub(crate) view: View<'a>,
    /// A request that is served as if it waited.
    pub(crate) as_if: Option<&'a AsIf<'a>>,
    /// The same view with what is kept free taken.
    pub(crate) strict: Option<Strict<'a>>,
    pub(crate) packs: &'p mut Packs,
    pub(crate) hopeless: &'p mut Hopeless,
    pub(crate) fruitless: &'p mut Fruitless,
    pub(crate) grown_last: &'p mut Option<RequestId>,
    /// Requests for which a start was looked for; `None` before the first.
    pub(crate) looked_at: Option<usize>,
    pub(crate) placed: Vec<Placed<'a>>,
    /// What has failed fails again: within a plan, room only becomes less.
    pub(crate) failed: BTreeSet<Asked<'a>>,
}

/// What this plan has placed.
pub(crate) struct Placed<'a> {
    spec: &'a RequestSpec,
    institution: &'a str,
    pub(crate) candidate: Candidate,
    end: Timestamp,
}

impl Placed<'_> {
    /// Whether it was placed for this request.
    pub(crate) fn is_of(&self, request: &Request) -> bool {
        std::ptr::eq(self.spec, &raw const request.spec)
    }

    pub(crate) fn held(&self) -> Held<'_> {
        let counts = LeaseUse {
            tenant: self.spec.tenant.as_str(),
            institution: self.institution,
            donor: self.candidate.placement.donor.as_str(),
            class: self.candidate.class.as_str(),
            agreement: self.candidate.agreement.as_deref(),
            gpus_milli: self.candidate.placement.milli(),
            replaced: false,
        };
        Held { end: self.end, counts, placement: &self.candidate.placement }
    }
}

impl<'a> Run<'a, '_> {
    /// Places up to `limit` waiting requests, in their order.
    pub(crate) fn serve(&mut self, plan: &mut Plan, limit: usize) {
        let mut order = Order::new(self.view.state, self.view.bundle, self.as_if);
        let mut served = self.enter_rooms(plan, limit);
        served.extend(self.overdue(plan, limit));
        for proposed in &plan.placements {
            let request = self.view.state.requests.get(&proposed.request);
            request.into_iter().for_each(|request| order.placed(request.spec.tenant.as_str(), proposed.amounts()));
        }
        self.move_reclaimed(plan, limit);
        self.serve_in_order(plan, limit, (&mut order, &served));
        self.grow(plan, limit);
        self.check_repairs(plan);
    }

    /// Places those that wait as the order has them, in batches.
    fn serve_in_order(&mut self, plan: &mut Plan, limit: usize, (order, served): (&mut Order<'a>, &[RequestId])) {
        let mut ahead = Ahead::new(self.view.state, self.as_if);
        let few = self.view.state.queued_len() + usize::from(self.as_if.is_some()) <= MAX_BATCH;
        if !few && self.place_next_together(plan, limit) {
            return;
        }
        let (mut batch, mut tries): (Option<Batch<'a>>, usize) = (None, 0);
        while plan.placements.len() < limit {
            let Some((id, request)) = order.next() else { break };
            if served.contains(&id) {
                continue;
            }
            // Where requests behind are looked at, where each lies depends on who is placed when: those are left alone.
            let behind = ahead.behind(id, request);
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
            let kept = self.kept();
            if !self.make_room(plan, id, request) && plan.reserved.is_none() && self.has_waited(request, 1) {
                plan.reserved = self.reserve(id, request);
            }
            batch = batch.filter(|_| self.kept() == kept);
        }
        self.keep_a_place_for(Vec::new());
        // Looking twice at what fits anyhow is for times when there is time.
        if let Some(batch) = batch.filter(|_| few) {
            self.tidy(plan, &batch);
        }
    }

    /// What is placed from now on leaves room for these, where it has a choice.
    fn keep_a_place_for(&mut self, ahead: Vec<&'a RequestSpec>) {
        if let Some(strict) = &mut self.strict {
            strict.view.ahead.clone_from(&ahead);
        }
        self.view.ahead = ahead;
    }

    /// Whether a request has waited so many times the time after which capacity is reserved.
    pub(crate) fn has_waited(&self, request: &Request, times: u64) -> bool {
        let state = self.view.state;
        state.log_time.since(request.waits_since()).0 >= state.settings().reserve_after.0.saturating_mul(times)
    }

    /// Serves the request that waits the longest, if that is far too long and the last such is some time ago: it is
    /// placed, or gets the reservation. So nobody waits for ever, whatever priorities and shares say; and seldom enough
    /// that they say who is served. The request, if it was placed.
    fn overdue(&mut self, plan: &mut Plan, limit: usize) -> Option<RequestId> {
        let state = self.view.state;
        let pause = state.settings().reserve_after.0.saturating_mul(OVERDUE_AFTER);
        if plan.placements.len() >= limit || state.log_time.since(state.last_overdue).0 < pause {
            return None;
        }
        for (_, id) in &state.derived.queue.by_age {
            let request = state.requests.get(id)?;
            if plan.placements.iter().any(|placed| placed.request == *id) {
                continue;
            }
            if !self.has_waited(request, OVERDUE_AFTER) || self.looked_at.is_some_and(|count| count >= MAX_LOOKED_AT) {
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

    /// The best placement now that does not delay what has a reservation; what failed before in this plan fails at
    /// once.
    pub(crate) fn best(&mut self, request: &'a Request) -> Option<Found> {
        if self.failed.contains(&Asked::of(&request.spec)) {
            return None;
        }
        let found = self.find(&request.spec, Some(request));
        if found.is_none() {
            self.failed.insert(Asked::of(&request.spec));
        }
        found
    }

    /// The best placement now that does not delay what has a reservation.
    pub(crate) fn find(&mut self, spec: &RequestSpec, request: Option<&Request>) -> Option<Found> {
        let packs = &mut *self.packs;
        let view = self.strict.as_ref().map_or(&self.view, |strict| &strict.view);
        let promises = packs.promises(view, spec);
        let mut packed = |view: &View<'_>, donor: &ClusterId, wanted: &Wanted<'_>| packs.fit(view, donor, wanted);
        let found = best(view, spec, request, promises, &mut packed);
        let Some(strict) = &self.strict else { return found };
        found.or_else(|| {
            let first = strict.kept.iter().map(|kept| kept.start.at).min()?;
            if end_if_placed(self.view.state, spec.duration) > first {
                return None;
            }
            // It is gone before: what is reserved is free for it. The packs hold that as taken, so there it is fitted.
            let reserved = |donor: &ClusterId| {
                let mut parts = strict.kept.iter().flat_map(|kept| &kept.start.found);
                parts.any(|part| part.placement.donor == *donor)
            };
            let all = promising_nothing(self.view.state, spec);
            best(&self.view, spec, request, all, &mut |view, donor, wanted| {
                if reserved(donor) { packs.look(view, donor, wanted) } else { packs.fit(view, donor, wanted) }
            })
        })
    }

    /// The earliest start of `spec` under the ends of leases and of what this plan has placed.
    pub(crate) fn earliest(&self, spec: &RequestSpec) -> Option<Start> {
        let mut held = held(self.view.state);
        held.extend(self.placed.iter().map(Placed::held));
        held.sort_by_key(|held| held.end);
        earliest(&self.view, &held, spec)
    }

    /// Counts what was found for a request in, and proposes it.
    pub(crate) fn propose(&mut self, id: RequestId, request: &'a Request, found: Found) -> ProposedPlacement {
        let mut parts: Vec<Placement> = found.into_iter().map(|part| self.take(request, part)).collect();
        let placement = parts.remove(0);
        ProposedPlacement { request: id, placement, more: parts, aim: Aim::Serve, overdue: false }
    }

    /// Counts a placement in.
    fn take(&mut self, request: &'a Request, candidate: Candidate) -> Placement {
        let spec = &request.spec;
        self.each_view(|view| {
            view.take(spec.tenant.as_str(), &candidate.class, candidate.agreement.as_deref(), &candidate.placement);
        });
        let view = self.strict.as_ref().map_or(&self.view, |strict| &strict.view);
        self.packs.take(view, &candidate.placement);
        let placement = candidate.placement.clone();
        let institution = view.bundle.tenants.get(spec.tenant.as_str()).map_or("", |t| t.spec.institution.as_str());
        let end = end_if_placed(view.state, spec.duration);
        self.placed.push(Placed { spec, institution, candidate, end });
        placement
    }

    /// Changes what is seen, with and without what is reserved.
    pub(crate) fn each_view(&mut self, change: impl Fn(&mut View<'a>)) {
        change(&mut self.view);
        if let Some(strict) = &mut self.strict {
            change(&mut strict.view);
        }
    }
}
