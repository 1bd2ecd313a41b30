//! A plan in progress: its snapshot, its reservations, and its placements so far.

use std::collections::BTreeSet;

use comity_policy::LeaseUse;

use crate::feasibility::demand_key::DemandKey;
use crate::feasibility::donors::best::best;
use crate::feasibility::donors::promise::unknown_promises;
use crate::feasibility::donors::spread::Found;
use crate::feasibility::fit::Wanted;
use crate::feasibility::snapshot::{HeldCapacity, Snapshot};
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::demand::RequestSpec;
use crate::model::id::{ClusterId, RequestId};
use crate::model::placement::Placement;
use crate::model::proposal::{Aim, ProposedPlacement};
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::misses::{RoomMisses, StartMisses};
use crate::scheduler::order::Hypothetical;
use crate::scheduler::placement_index::PlacementIndex;
use crate::scheduler::reserve::{Start, earliest_start, end_if_placed_now, held_by_leases};
use crate::scheduler::reserved_view::ReservedView;

/// A plan in progress.
pub(crate) struct Planning<'a, 'p> {
    /// The state plus the placements of this plan.
    pub(crate) snapshot: Snapshot<'a>,
    /// A request treated as if it were waiting.
    pub(crate) hypothetical: Option<&'a Hypothetical<'a>>,
    /// The snapshot with all reservations taken.
    pub(crate) reserved: Option<ReservedView<'a>>,
    pub(crate) index: &'p mut PlacementIndex,
    pub(crate) start_misses: &'p mut StartMisses,
    pub(crate) room_misses: &'p mut RoomMisses,
    pub(crate) last_grown: &'p mut Option<RequestId>,
    /// Start searches so far; `None` before the first.
    pub(crate) start_searches: Option<usize>,
    pub(crate) placed: Vec<Placed<'a>>,
    /// Demands that fit nowhere. They keep failing, because room only shrinks within a plan.
    pub(crate) failed: BTreeSet<DemandKey<'a>>,
}

/// A placement of this plan.
pub(crate) struct Placed<'a> {
    spec: &'a RequestSpec,
    institution: &'a str,
    pub(crate) candidate: FeasiblePlacement,
    end: Timestamp,
}

impl Placed<'_> {
    pub(crate) fn serves(&self, request: &Request) -> bool {
        std::ptr::eq(self.spec, &raw const request.spec)
    }

    pub(crate) fn as_held(&self) -> HeldCapacity<'_> {
        let counts = LeaseUse {
            tenant: self.spec.tenant.as_str(),
            institution: self.institution,
            donor: self.candidate.placement.donor.as_str(),
            class: self.candidate.class.as_str(),
            agreement: self.candidate.agreement.as_deref(),
            gpus_milli: self.candidate.placement.milli(),
            replaced: false,
        };
        HeldCapacity { end: self.end, counts, placement: &self.candidate.placement }
    }
}

impl<'a> Planning<'a, '_> {
    /// Sets the requests behind, which later placements leave room for where they have a choice.
    pub(crate) fn set_lookahead(&mut self, lookahead: Vec<&'a RequestSpec>) {
        if let Some(reserved) = &mut self.reserved {
            reserved.snapshot.lookahead.clone_from(&lookahead);
        }
        self.snapshot.lookahead = lookahead;
    }

    /// Whether a request has waited at least `times` × `reserve_after`.
    pub(crate) fn has_waited(&self, request: &Request, times: u64) -> bool {
        let state = self.snapshot.state;
        state.log_time.since(request.waits_since()).0 >= state.settings().reserve_after.0.saturating_mul(times)
    }

    /// Like [`find`](Self::find) for a request, but fails at once if its demand failed before in this plan.
    pub(crate) fn find_unless_failed(&mut self, request: &'a Request) -> Option<Found> {
        if self.failed.contains(&DemandKey::of(&request.spec)) {
            return None;
        }
        let found = self.find(&request.spec, Some(request));
        if found.is_none() {
            self.failed.insert(DemandKey::of(&request.spec));
        }
        found
    }

    /// The best placement now that delays no reservation.
    pub(crate) fn find(&mut self, spec: &RequestSpec, request: Option<&Request>) -> Option<Found> {
        let index = &mut *self.index;
        let snapshot = self.reserved.as_ref().map_or(&self.snapshot, |reserved| &reserved.snapshot);
        let promises = index.promises(snapshot, spec);
        let mut packed =
            |snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>| index.fit(snapshot, donor, wanted);
        let found = best(snapshot, spec, request, promises, &mut packed);
        let Some(reserved) = &self.reserved else { return found };
        found.or_else(|| {
            let first_start = reserved.starts.iter().map(|reserved| reserved.start.at).min()?;
            if end_if_placed_now(self.snapshot.state, spec.duration) > first_start {
                return None;
            }
            // The request ends before any reservation starts, so it may backfill reserved capacity. The index counts
            // that as taken, hence the scan.
            let has_reservation = |donor: &ClusterId| {
                let mut parts = reserved.starts.iter().flat_map(|reserved| &reserved.start.found);
                parts.any(|part| part.placement.donor == *donor)
            };
            let all = unknown_promises(self.snapshot.state, spec);
            best(&self.snapshot, spec, request, all, &mut |snapshot, donor, wanted| {
                if has_reservation(donor) {
                    index.fit_by_scan(snapshot, donor, wanted)
                } else {
                    index.fit(snapshot, donor, wanted)
                }
            })
        })
    }

    /// The earliest start of `spec`, given the ends of leases and of this plan's placements.
    pub(crate) fn earliest_start(&self, spec: &RequestSpec) -> Option<Start> {
        let mut held = held_by_leases(self.snapshot.state);
        held.extend(self.placed.iter().map(Placed::as_held));
        held.sort_by_key(|held| held.end);
        earliest_start(&self.snapshot, &held, spec)
    }

    /// Records a placement for a request and proposes it.
    pub(crate) fn propose(&mut self, id: RequestId, request: &'a Request, found: Found) -> ProposedPlacement {
        let mut parts: Vec<Placement> = found.into_iter().map(|part| self.record(request, part)).collect();
        let placement = parts.remove(0);
        ProposedPlacement { request: id, placement, more: parts, aim: Aim::Serve, overdue: false }
    }

    /// Records one part of a placement in the snapshots and the index.
    fn record(&mut self, request: &'a Request, candidate: FeasiblePlacement) -> Placement {
        let spec = &request.spec;
        self.update_views(|snapshot| {
            snapshot.take(spec.tenant.as_str(), &candidate.class, candidate.agreement.as_deref(), &candidate.placement);
        });
        let snapshot = self.reserved.as_ref().map_or(&self.snapshot, |reserved| &reserved.snapshot);
        self.index.update_nodes(snapshot, &candidate.placement);
        let placement = candidate.placement.clone();
        let institution = snapshot.bundle.tenants.get(spec.tenant.as_str()).map_or("", |t| t.spec.institution.as_str());
        let end = end_if_placed_now(snapshot.state, spec.duration);
        self.placed.push(Placed { spec, institution, candidate, end });
        placement
    }

    /// Applies `change` to the snapshots with and without reservations.
    pub(crate) fn update_views(&mut self, change: impl Fn(&mut Snapshot<'a>)) {
        change(&mut self.snapshot);
        if let Some(reserved) = &mut self.reserved {
            change(&mut reserved.snapshot);
        }
    }
}
