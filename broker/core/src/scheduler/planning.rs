//! One plan while it is made: its snapshot, its reservations, and what it has placed so far.

use std::collections::BTreeSet;

use comity_policy::LeaseUse;

use crate::feasibility::demand_key::DemandKey;
use crate::feasibility::donors::best::best;
use crate::feasibility::donors::promise::promising_nothing;
use crate::feasibility::donors::spread::Found;
use crate::feasibility::fit::Wanted;
use crate::feasibility::snapshot::{Held, Snapshot};
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
use crate::scheduler::reserve::{Start, earliest, end_if_placed, held};
use crate::scheduler::reserved_view::ReservedView;

/// One plan being made.
pub(crate) struct Planning<'a, 'p> {
    /// What is lent, and what this plan has placed.
    pub(crate) snapshot: Snapshot<'a>,
    /// A request that is served as if it waited.
    pub(crate) hypothetical: Option<&'a Hypothetical<'a>>,
    /// The same snapshot with what is kept free taken.
    pub(crate) reserved: Option<ReservedView<'a>>,
    pub(crate) index: &'p mut PlacementIndex,
    pub(crate) start_misses: &'p mut StartMisses,
    pub(crate) room_misses: &'p mut RoomMisses,
    pub(crate) grown_last: &'p mut Option<RequestId>,
    /// Requests for which a start was looked for; `None` before the first.
    pub(crate) looked_at: Option<usize>,
    pub(crate) placed: Vec<Placed<'a>>,
    /// What has failed fails again: within a plan, room only becomes less.
    pub(crate) failed: BTreeSet<DemandKey<'a>>,
}

/// What this plan has placed.
pub(crate) struct Placed<'a> {
    spec: &'a RequestSpec,
    institution: &'a str,
    pub(crate) candidate: FeasiblePlacement,
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

impl<'a> Planning<'a, '_> {
    /// What is placed from now on leaves room for these, where it has a choice.
    pub(crate) fn keep_a_place_for(&mut self, lookahead: Vec<&'a RequestSpec>) {
        if let Some(reserved) = &mut self.reserved {
            reserved.snapshot.lookahead.clone_from(&lookahead);
        }
        self.snapshot.lookahead = lookahead;
    }

    /// Whether a request has waited so many times the time after which capacity is reserved.
    pub(crate) fn has_waited(&self, request: &Request, times: u64) -> bool {
        let state = self.snapshot.state;
        state.log_time.since(request.waits_since()).0 >= state.settings().reserve_after.0.saturating_mul(times)
    }

    /// The best placement now that does not delay what has a reservation; what failed before in this plan fails at
    /// once.
    pub(crate) fn best(&mut self, request: &'a Request) -> Option<Found> {
        if self.failed.contains(&DemandKey::of(&request.spec)) {
            return None;
        }
        let found = self.find(&request.spec, Some(request));
        if found.is_none() {
            self.failed.insert(DemandKey::of(&request.spec));
        }
        found
    }

    /// The best placement now that does not delay what has a reservation.
    pub(crate) fn find(&mut self, spec: &RequestSpec, request: Option<&Request>) -> Option<Found> {
        let index = &mut *self.index;
        let snapshot = self.reserved.as_ref().map_or(&self.snapshot, |reserved| &reserved.snapshot);
        let promises = index.promises(snapshot, spec);
        let mut packed =
            |snapshot: &Snapshot<'_>, donor: &ClusterId, wanted: &Wanted<'_>| index.fit(snapshot, donor, wanted);
        let found = best(snapshot, spec, request, promises, &mut packed);
        let Some(reserved) = &self.reserved else { return found };
        found.or_else(|| {
            let first = reserved.starts.iter().map(|kept| kept.start.at).min()?;
            if end_if_placed(self.snapshot.state, spec.duration) > first {
                return None;
            }
            // It is gone before: what is reserved is free for it. The packs hold that as taken, so there it is fitted.
            let reserved = |donor: &ClusterId| {
                let mut parts = reserved.starts.iter().flat_map(|kept| &kept.start.found);
                parts.any(|part| part.placement.donor == *donor)
            };
            let all = promising_nothing(self.snapshot.state, spec);
            best(&self.snapshot, spec, request, all, &mut |snapshot, donor, wanted| {
                if reserved(donor) { index.fit_by_scan(snapshot, donor, wanted) } else { index.fit(snapshot, donor, wanted) }
            })
        })
    }

    /// The earliest start of `spec` under the ends of leases and of what this plan has placed.
    pub(crate) fn earliest(&self, spec: &RequestSpec) -> Option<Start> {
        let mut held = held(self.snapshot.state);
        held.extend(self.placed.iter().map(Placed::held));
        held.sort_by_key(|held| held.end);
        earliest(&self.snapshot, &held, spec)
    }

    /// Counts what was found for a request in, and proposes it.
    pub(crate) fn propose(&mut self, id: RequestId, request: &'a Request, found: Found) -> ProposedPlacement {
        let mut parts: Vec<Placement> = found.into_iter().map(|part| self.take(request, part)).collect();
        let placement = parts.remove(0);
        ProposedPlacement { request: id, placement, more: parts, aim: Aim::Serve, overdue: false }
    }

    /// Counts a placement in.
    fn take(&mut self, request: &'a Request, candidate: FeasiblePlacement) -> Placement {
        let spec = &request.spec;
        self.each_view(|snapshot| {
            snapshot.take(spec.tenant.as_str(), &candidate.class, candidate.agreement.as_deref(), &candidate.placement);
        });
        let snapshot = self.reserved.as_ref().map_or(&self.snapshot, |reserved| &reserved.snapshot);
        self.index.update_nodes(snapshot, &candidate.placement);
        let placement = candidate.placement.clone();
        let institution = snapshot.bundle.tenants.get(spec.tenant.as_str()).map_or("", |t| t.spec.institution.as_str());
        let end = end_if_placed(snapshot.state, spec.duration);
        self.placed.push(Placed { spec, institution, candidate, end });
        placement
    }

    /// Changes what is seen, with and without what is reserved.
    pub(crate) fn each_view(&mut self, change: impl Fn(&mut Snapshot<'a>)) {
        change(&mut self.snapshot);
        if let Some(reserved) = &mut self.reserved {
            change(&mut reserved.snapshot);
        }
    }
}
