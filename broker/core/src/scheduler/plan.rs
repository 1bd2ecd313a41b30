//! The leader's proposal: placements for what waits.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use comity_policy::LeaseUse;

use super::ahead::Ahead;
use super::asked::Asked;
use super::batch::{Batch, MAX_BATCH, MAX_TRIES};
use super::fit::Wanted;
use super::hopeless::Hopeless;
use super::kept::Strict;
use super::make_room::Fruitless;
use super::order::{AsIf, Order};
use super::packs::Packs;
use super::reserve::{Reserved, Start, earliest, end_if_placed, held};
use super::score::{Beginning, Score, at_best, beginning, score};
use super::spread::{Found, spread};
use super::verdict::{Candidate, Fitter, ask_donor};
use super::view::{Held, View};
use crate::command::{Aim, ProposedPlacement, ProposedReclaim};
use crate::demand::RequestSpec;
use crate::id::{ClusterId, NodeId, RequestId};
use crate::placement::Placement;
use crate::request::Request;
use crate::state::State;
use crate::time::Timestamp;
use crate::work::WorkMix;

/// So many times the time after which capacity is reserved, and a request is served before its turn; one such in as
/// long.
pub const OVERDUE_AFTER: u64 = 8;
/// Requests for which one plan looks for a start before it gives up: each takes a look at all that is held.
pub(super) const MAX_LOOKED_AT: usize = 16;

/// What to propose. It was made from one revision; `apply` checks each placement again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Revision it was made from.
    pub based_on: u64,
    /// Placements in the order in which requests were served.
    pub placements: Vec<ProposedPlacement>,
    /// Requests that fit nowhere now; [`explain`](super::explain) says why.
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
    pub(super) fn beside(request: &Request) -> Self {
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
    pub(super) fn begin<'a>(&mut self, state: &'a State) -> Option<Run<'a, '_>> {
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
pub(super) struct Run<'a, 'p> {
    /// What is lent, and what this plan has placed.
    pub(super) view: View<'a>,
    /// A request that is served as if it waited.
    pub(super) as_if: Option<&'a AsIf<'a>>,
    /// The same view with what is kept free taken.
    pub(super) strict: Option<Strict<'a>>,
    pub(super) packs: &'p mut Packs,
    pub(super) hopeless: &'p mut Hopeless,
    pub(super) fruitless: &'p mut Fruitless,
    pub(super) grown_last: &'p mut Option<RequestId>,
    /// Requests for which a start was looked for; `None` before the first.
    pub(super) looked_at: Option<usize>,
    pub(super) placed: Vec<Placed<'a>>,
    /// What has failed fails again: within a plan, room only becomes less.
    pub(super) failed: BTreeSet<Asked<'a>>,
}

/// What this plan has placed.
pub(super) struct Placed<'a> {
    spec: &'a RequestSpec,
    institution: &'a str,
    pub(super) candidate: Candidate,
    end: Timestamp,
}

impl Placed<'_> {
    /// Whether it was placed for this request.
    pub(super) fn is_of(&self, request: &Request) -> bool {
        std::ptr::eq(self.spec, &raw const request.spec)
    }

    pub(super) fn held(&self) -> Held<'_> {
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
    pub(super) fn serve(&mut self, plan: &mut Plan, limit: usize) {
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
    pub(super) fn has_waited(&self, request: &Request, times: u64) -> bool {
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
    pub(super) fn best(&mut self, request: &'a Request) -> Option<Found> {
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
    pub(super) fn find(&mut self, spec: &RequestSpec, request: Option<&Request>) -> Option<Found> {
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
    pub(super) fn earliest(&self, spec: &RequestSpec) -> Option<Start> {
        let mut held = held(self.view.state);
        held.extend(self.placed.iter().map(Placed::held));
        held.sort_by_key(|held| held.end);
        earliest(&self.view, &held, spec)
    }

    /// Counts what was found for a request in, and proposes it.
    pub(super) fn propose(&mut self, id: RequestId, request: &'a Request, found: Found) -> ProposedPlacement {
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
    pub(super) fn each_view(&mut self, change: impl Fn(&mut View<'a>)) {
        change(&mut self.view);
        if let Some(strict) = &mut self.strict {
            change(&mut strict.view);
        }
    }
}

/// A member cluster, and its place among them in the order of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member<'a> {
    pub(super) at: usize,
    pub(super) donor: &'a ClusterId,
}

/// What is known of a donor before it is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise<'a> {
    pub(super) member: Member<'a>,
    /// What it leaves idle at least, in thousandths of a device, if that is known.
    pub(super) idle_milli: Option<i64>,
    /// What it lends already, in thousandths of a device, if that was looked up.
    pub(super) lent_milli: Option<u64>,
}

/// All donors, of which nothing is known before they are asked.
pub(super) fn promising_nothing<'a>(state: &'a State, spec: &RequestSpec) -> Vec<Promise<'a>> {
    let members = (0..).zip(state.clusters.keys()).filter(|(_, id)| **id != spec.origin);
    members.map(|(at, donor)| Promise { member: Member { at, donor }, idle_milli: None, lent_milli: None }).collect()
}

/// The best placement over all donors, if there is any: at one of them, or else as parts at several where that is
/// allowed. Those that promise most are asked first, and none whose promise is worse than what was found.
pub(super) fn best(
    view: &View<'_>,
    spec: &RequestSpec,
    request: Option<&Request>,
    promises: Vec<Promise<'_>>,
    fitter: Fitter<'_>,
) -> Option<Found> {
    let mut promises: Vec<(Beginning, Promise<'_>)> =
        promises.into_iter().map(|promise| (beginning(view.state, spec, request, promise), promise)).collect();
    promises.sort_unstable_by_key(|(beginning, _)| *beginning);
    let mut one: Option<(Score, Candidate)> = None;
    // How many shares a donor has room for is not promised: a gang asks all of them.
    let gang = spec.members.is_some();
    for alike in promises.chunk_by(|one, other| one.0 == other.0) {
        if !gang && one.as_ref().is_some_and(|(found, _)| found.beginning() < alike[0].0) {
            break;
        }
        // Most often the first is the one.
        let mut next: BinaryHeap<Reverse<(Score, &ClusterId)>> =
            alike.iter().map(|(_, it)| Reverse((at_best(view, spec, request, it), it.member.donor))).collect();
        while let Some(Reverse((at_best, donor))) = next.pop() {
            let surpassed = |(found, _): &(Score, Candidate)| found.with_most_shares() < at_best;
            if !gang && one.as_ref().is_some_and(surpassed) {
                break;
            }
            let Ok(candidate) = ask_donor(view, spec, donor, fitter) else { continue };
            let score = score(view, spec, request, &candidate);
            debug_assert!(at_best <= score, "{donor} promised {at_best:?} and keeps {score:?}");
            if one.as_ref().is_none_or(|(found, _)| score < *found) {
                one = Some((score, candidate));
            }
        }
    }
    match one {
        Some((_, candidate)) => Some(vec![candidate]),
        None => spread(view, spec, request, fitter),
    }
}

/// Clusters that could lend to `spec`: all members but the origin.
pub(super) fn donors<'a>(state: &'a State, spec: &RequestSpec) -> impl Iterator<Item = &'a ClusterId> {
    state.clusters.keys().filter(|id| **id != spec.origin)
}
