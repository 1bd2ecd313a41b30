//! The negative cache: searches that found nothing and need not be repeated yet.
//!
//! A miss counts until something changes that could let the search succeed, and no longer than its time to live:
//!
//! | miss of           | counts until                                                                   | at most     |
//! |-------------------|--------------------------------------------------------------------------------|-------------|
//! | [`Search::Place`] | the plan gives room back                                                       | one plan    |
//! | [`Search::Start`] | an offer, a connection or the policy changes, or a plan is not applied         | one minute  |
//! | [`Search::Room`]  | –                                                                              | ten seconds |
//!
//! A re-base of log time ends all of them.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{ClusterId, RequestId};

use crate::feasibility::demand_key::DemandKey;
use crate::model::cluster::Cluster;
use crate::model::time::{Millis, Timestamp};
use crate::state::State;

/// Room searches per plan: each examines the leases of every donor.
const MAX_ROOM_SEARCHES: usize = 8;
/// Start searches per plan: each examines all held capacity.
const MAX_START_SEARCHES: usize = 16;
/// Lifetime of a failed room search.
const ROOM_MISS_TTL: Millis = Millis::from_secs(10);
/// Lifetime of failed start searches: policy depends on dates.
const START_MISS_TTL: Millis = Millis::from_mins(1);

/// A search that may find nothing.
pub(crate) enum Search<'a> {
    /// For a place that is free now. Equal demands share the answer.
    Place(DemandKey<'a>),
    /// For the end of leases that makes room for a request.
    Start(RequestId),
    /// For leases to reclaim for a request.
    Room(RequestId, SearchBudget),
}

/// Whether a room search counts against the budget of its plan.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SearchBudget {
    /// At most [`MAX_ROOM_SEARCHES`] searches per plan.
    PerPlan,
    /// For a hypothetical request, whose answer somebody waits for.
    Unlimited,
}

/// The misses that outlast a plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastingMisses {
    rooms: BTreeMap<RequestId, Timestamp>,
    starts: StartMisses,
    /// Total shift of log time by re-bases at the last plan.
    shift_ms: i64,
}

/// Requests that no lease end makes room for, and the facts that this rests on.
#[derive(Clone, Debug, Default)]
struct StartMisses {
    since: Timestamp,
    /// By donor: offer generation, and whether the donor is connected.
    donors: BTreeMap<ClusterId, (u64, bool)>,
    policy: String,
    requests: BTreeSet<RequestId>,
}

/// The misses that count in one plan, and the plan's search budgets.
pub(crate) struct Misses<'a, 'p> {
    state: &'a State,
    places: BTreeSet<DemandKey<'a>>,
    lasting: &'p mut LastingMisses,
    room_searches: usize,
    /// `None` before the first: it compares the facts behind earlier misses.
    start_searches: Option<usize>,
}

/// The misses of [`Search::Place`] that a rollback forgot.
pub(crate) struct ForgottenPlaces<'a>(BTreeSet<DemandKey<'a>>);

impl LastingMisses {
    /// Forgets the failed searches for starts of a plan that was not applied.
    pub(crate) fn forget_starts(&mut self) {
        self.starts = StartMisses::default();
    }
}

impl StartMisses {
    /// Forgets all if anything changed that could make room.
    fn update(&mut self, state: &State) {
        let of = |(id, cluster): (&ClusterId, &Cluster)| {
            (id.clone(), (cluster.offer.as_ref().map_or(0, |offer| offer.generation), cluster.connected))
        };
        let donors: BTreeMap<_, _> = state.clusters.iter().map(of).collect();
        let policy = state.policy.as_ref().map_or("", |record| record.bundle.hash.as_str());
        let old = state.log_time.since(self.since) >= START_MISS_TTL;
        if old || self.donors != donors || self.policy != policy {
            *self = Self { since: state.log_time, donors, policy: policy.to_owned(), requests: BTreeSet::new() };
        }
    }
}

impl<'a, 'p> Misses<'a, 'p> {
    /// Begins a plan: drops expired misses.
    pub(super) fn begin(state: &'a State, lasting: &'p mut LastingMisses) -> Self {
        if lasting.shift_ms != state.time_shift_ms {
            // Cached times are meaningless after a re-base of log time.
            *lasting = LastingMisses { shift_ms: state.time_shift_ms, ..LastingMisses::default() };
        }
        lasting.rooms.retain(|_, since| state.log_time.since(*since) < ROOM_MISS_TTL);
        Self { state, places: BTreeSet::new(), lasting, room_searches: 0, start_searches: None }
    }

    /// Whether to search: there is budget, and the search has not missed. Counts the search.
    pub(crate) fn may_search(&mut self, search: &Search<'a>) -> bool {
        match search {
            Search::Place(demand) => !self.places.contains(demand),
            Search::Start(request) => {
                if self.start_searches.is_none() {
                    self.lasting.starts.update(self.state);
                }
                let count = self.start_searches.get_or_insert(0);
                if *count >= MAX_START_SEARCHES || self.lasting.starts.requests.contains(request) {
                    return false;
                }
                *count += 1;
                true
            }
            Search::Room(request, budget) => {
                let exhausted = *budget == SearchBudget::PerPlan && self.room_searches >= MAX_ROOM_SEARCHES;
                if exhausted || self.lasting.rooms.contains_key(request) {
                    return false;
                }
                self.room_searches += 1;
                true
            }
        }
    }

    /// Whether the plan's budget of start searches is spent.
    pub(crate) fn start_budget_is_spent(&self) -> bool {
        self.start_searches.is_some_and(|count| count >= MAX_START_SEARCHES)
    }

    /// Records that a search found nothing.
    pub(crate) fn record(&mut self, search: Search<'a>) {
        match search {
            Search::Place(demand) => _ = self.places.insert(demand),
            Search::Start(request) => _ = self.lasting.starts.requests.insert(request),
            Search::Room(request, _) => _ = self.lasting.rooms.insert(request, self.state.log_time),
        }
    }

    /// Forgets failed searches for a place, because the plan gave room back.
    pub(super) fn forget_places(&mut self) -> ForgottenPlaces<'a> {
        ForgottenPlaces(std::mem::take(&mut self.places))
    }

    /// Undoes [`forget_places`](Self::forget_places): the room is taken again.
    pub(super) fn restore_places(&mut self, forgotten: ForgottenPlaces<'a>) {
        self.places = forgotten.0;
    }
}
