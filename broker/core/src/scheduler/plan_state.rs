//! The state of a plan in progress: free capacity, the plan's placements and reservations, and failed searches.
//!
//! Three structures describe free capacity: the snapshot with this plan's placements, the same snapshot without what is
//! reserved, and the placement index. They change together, and only here: [`place`](PlanState::place),
//! [`reserve`](PlanState::reserve), [`rollback`](PlanState::rollback) and [`replay`](PlanState::replay).

pub(crate) mod misses;
pub(crate) mod placed;
pub(crate) mod reserved_start;

use comity_types::{ClusterId, LeaseId, RequestId};

use self::misses::{ForgottenPlaces, LastingMisses, Misses};
use self::placed::{Placed, Purpose};
use self::reserved_start::ReservedStart;
use crate::feasibility::donors::best::best;
use crate::feasibility::donors::promise::unknown_promises;
use crate::feasibility::donors::spread::Found;
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::RequestSpec;
use crate::model::placement::Placement;
use crate::model::proposal::ProposedPlacement;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::placement_index::PlacementIndex;
use crate::scheduler::reserve::{Start, earliest_start, end_if_placed_now, held_by_leases};
use crate::state::gpu_time::KeptEnd;

/// The state of a plan in progress.
pub(crate) struct PlanState<'a, 'p> {
    capacity: FreeCapacity<'a>,
    /// Indexes the [strictest](FreeCapacity::strictest) snapshot.
    index: &'p mut PlacementIndex,
    placed: Vec<Placed<'a>>,
    reserved: Vec<ReservedStart<'a>>,
    pub(crate) misses: Misses<'a, 'p>,
}

/// Free capacity, with and without what is reserved.
struct FreeCapacity<'a> {
    /// The state plus the placements of the plan.
    now: Snapshot<'a>,
    /// `now` with all reservations taken: capacity for requests that run past a reserved start. `None` without
    /// reservations.
    unreserved: Option<Snapshot<'a>>,
}

/// A point of a plan to return to.
#[derive(Clone, Copy)]
pub(crate) struct Checkpoint {
    placed: usize,
    reserved: usize,
}

/// The steps that a rollback undid.
pub(crate) struct Undone<'a> {
    pub(crate) placed: Vec<Placed<'a>>,
    reserved: Vec<ReservedStart<'a>>,
    failed: ForgottenPlaces<'a>,
}

/// Capacity that a request holds while a place is sought for more of it.
#[derive(Clone, Copy)]
pub(crate) enum Holding<'h> {
    /// Limits per request count these thousandths of devices too. The new lease ends with the others.
    Beside(u64, Option<KeptEnd>),
    /// A chain of leases whose last is to be replaced: limits do not count them. The new lease may take over their end.
    Replaced(&'h [LeaseId], Option<KeptEnd>),
}

impl<'a> FreeCapacity<'a> {
    /// The capacity that nothing has taken or reserved.
    fn strictest(&self) -> &Snapshot<'a> {
        self.unreserved.as_ref().unwrap_or(&self.now)
    }

    fn change(&mut self, change: impl Fn(&mut Snapshot<'a>)) {
        change(&mut self.now);
        self.unreserved.as_mut().into_iter().for_each(change);
    }

    fn reserve(&mut self, start: &ReservedStart<'a>) {
        start.take(self.unreserved.get_or_insert_with(|| self.now.clone()));
    }

    /// Gives back placements; `reserved` are the reservations that remain.
    fn give_back(&mut self, placed: &[Placed<'a>], reserved: &[ReservedStart<'a>]) {
        placed.iter().for_each(|placed| placed.give_back(&mut self.now));
        // Backfill overlaps with reservations, so subtracting it here could free reserved MIG slots.
        self.unreserved = None;
        reserved.iter().for_each(|start| self.reserve(start));
    }

    /// Whether this is what `placed` and `reserved` leave of the state.
    fn is_left_by(&self, placed: &[Placed<'a>], reserved: &[ReservedStart<'a>]) -> bool {
        let Some(mut snapshot) = Snapshot::new(self.now.state) else { return false };
        placed.iter().for_each(|placed| placed.take(&mut snapshot));
        let same = snapshot.has_same_capacity(&self.now);
        reserved.iter().for_each(|start| start.take(&mut snapshot));
        same && snapshot.has_same_capacity(self.strictest())
    }
}

impl<'a, 'p> PlanState<'a, 'p> {
    /// Begins a plan on `snapshot`, which has no placements yet.
    pub(crate) fn begin(
        snapshot: Snapshot<'a>,
        index: &'p mut PlacementIndex,
        lasting_misses: &'p mut LastingMisses,
    ) -> Self {
        index.begin(&snapshot);
        let misses = Misses::begin(snapshot.state, lasting_misses);
        let capacity = FreeCapacity { now: snapshot, unreserved: None };
        Self { capacity, index, placed: Vec::new(), reserved: Vec::new(), misses }
    }

    /// The state plus the placements of the plan.
    pub(crate) fn snapshot(&self) -> &Snapshot<'a> {
        &self.capacity.now
    }

    /// The placements of the plan, in order.
    pub(crate) fn placed(&self) -> &[Placed<'a>] {
        &self.placed
    }

    /// The reservations of the plan, in order.
    pub(crate) fn reserved(&self) -> &[ReservedStart<'a>] {
        &self.reserved
    }

    /// The placements as `apply` gets them.
    pub(crate) fn proposals(&self) -> Vec<ProposedPlacement> {
        debug_assert!(self.capacity.is_left_by(&self.placed, &self.reserved));
        self.placed.iter().filter_map(Placed::proposal).collect()
    }

    /// Sets the requests behind, which later placements leave room for where they have a choice.
    pub(crate) fn set_lookahead(&mut self, lookahead: &[&'a RequestSpec]) {
        self.capacity.change(|snapshot| {
            snapshot.lookahead.clear();
            snapshot.lookahead.extend_from_slice(lookahead);
        });
    }

    /// Places a request.
    pub(crate) fn place(&mut self, id: RequestId, request: &'a Request, found: Found, purpose: Purpose<'a>) {
        let placed = Placed::new(&self.capacity.now, id, request, found, purpose);
        self.redo(placed);
    }

    /// Reserves the capacity of a start that happens at `starts_by` at the latest.
    pub(crate) fn reserve(&mut self, request: &'a Request, start: Start, starts_by: Timestamp) {
        let reserved = ReservedStart { request, start, starts_by };
        self.capacity.reserve(&reserved);
        update_nodes(self.index, &self.capacity, reserved.placements());
        self.reserved.push(reserved);
    }

    /// The present point of the plan.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint { placed: self.placed.len(), reserved: self.reserved.len() }
    }

    /// Whether anything was reserved after `checkpoint`.
    pub(crate) fn has_reserved_since(&self, checkpoint: Checkpoint) -> bool {
        self.reserved.len() > checkpoint.reserved
    }

    /// Undoes all placements and reservations after `checkpoint`. Failed demands may fit then.
    pub(crate) fn rollback(&mut self, checkpoint: Checkpoint) -> Undone<'a> {
        let placed = self.placed.split_off(checkpoint.placed);
        let reserved = self.reserved.split_off(checkpoint.reserved);
        self.capacity.give_back(&placed, &self.reserved);
        let placements = placed.iter().flat_map(Placed::placements);
        update_nodes(self.index, &self.capacity, placements.chain(reserved.iter().flat_map(ReservedStart::placements)));
        debug_assert!(self.capacity.is_left_by(&self.placed, &self.reserved));
        Undone { placed, reserved, failed: self.misses.forget_places() }
    }

    /// Redoes what the last rollback undid. Nothing else may have changed in between.
    pub(crate) fn replay(&mut self, undone: Undone<'a>) {
        undone.placed.into_iter().for_each(|placed| self.redo(placed));
        undone.reserved.into_iter().for_each(|it| self.reserve(it.request, it.start, it.starts_by));
        self.misses.restore_places(undone.failed);
    }

    fn redo(&mut self, placed: Placed<'a>) {
        self.capacity.change(|snapshot| placed.take(snapshot));
        update_nodes(self.index, &self.capacity, placed.placements());
        self.placed.push(placed);
    }

    /// The best placement now that delays no reservation.
    pub(crate) fn find(&mut self, spec: &RequestSpec, request: Option<&Request>) -> Option<Found> {
        let (index, snapshot) = (&mut *self.index, self.capacity.strictest());
        let promises = index.promises(snapshot, spec);
        let found =
            best(snapshot, spec, request, promises, &mut |snapshot, donor, wanted| index.fit(snapshot, donor, wanted));
        found.or_else(|| self.find_backfill(spec, request))
    }

    /// The best placement in reserved capacity of a request that ends before any reservation starts.
    fn find_backfill(&mut self, spec: &RequestSpec, request: Option<&Request>) -> Option<Found> {
        let first_start = self.reserved.iter().map(|reserved| reserved.start.at).min()?;
        let snapshot = &self.capacity.now;
        if end_if_placed_now(snapshot.state, spec.duration) > first_start {
            return None;
        }
        // The index counts reserved capacity as taken, hence the scan.
        let (index, reserved) = (&mut *self.index, &self.reserved);
        let has_reservation = |donor: &ClusterId| {
            let mut parts = reserved.iter().flat_map(ReservedStart::placements);
            parts.any(|part| part.donor == *donor)
        };
        let all = unknown_promises(snapshot.state, spec);
        best(snapshot, spec, request, all, &mut |snapshot, donor, wanted| {
            if has_reservation(donor) {
                index.fit_by_scan(snapshot, donor, wanted)
            } else {
                index.fit(snapshot, donor, wanted)
            }
        })
    }

    /// The best placement for the first of `specs` that fits, for a request that holds something already.
    pub(crate) fn find_for_holder(
        &mut self,
        specs: &[RequestSpec],
        request: &Request,
        holding: Holding<'_>,
    ) -> Option<Found> {
        let (Holding::Beside(_, kept_end) | Holding::Replaced(_, kept_end)) = holding;
        self.capacity.change(|snapshot| {
            snapshot.kept_end = kept_end;
            match holding {
                Holding::Beside(milli, _) => snapshot.beside_milli = milli,
                Holding::Replaced(chain, _) => snapshot.exclude_chain(chain),
            }
        });
        let found = specs.iter().find_map(|spec| self.find(spec, Some(request)));
        self.capacity.change(|snapshot| {
            snapshot.kept_end = None;
            match holding {
                Holding::Beside(..) => snapshot.beside_milli = 0,
                Holding::Replaced(chain, _) => snapshot.restore_chain(chain),
            }
        });
        found
    }

    /// The earliest start of `spec`, given the ends of leases and of this plan's placements.
    pub(crate) fn earliest_start(&self, spec: &RequestSpec) -> Option<Start> {
        let snapshot = &self.capacity.now;
        let mut held = held_by_leases(snapshot.state);
        held.extend(self.placed.iter().flat_map(Placed::held));
        held.sort_by_key(|held| held.end);
        earliest_start(snapshot, &held, spec)
    }
}

/// Updates the index after `capacity` changed on the nodes of `placements`.
fn update_nodes<'l>(
    index: &mut PlacementIndex,
    capacity: &FreeCapacity<'_>,
    placements: impl Iterator<Item = &'l Placement>,
) {
    placements.for_each(|placement| index.update_nodes(capacity.strictest(), placement));
}
