//! A placement of the plan in progress.

use comity_policy::LeaseUse;
use comity_types::{LeaseId, RequestId};

use crate::feasibility::donors::spread::Found;
use crate::feasibility::held_capacity::HeldCapacity;
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::amounts::Amounts;
use crate::model::lease::Lease;
use crate::model::placement::Placement;
use crate::model::proposal::{PlacementKind, ProposedPlacement};
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::reserve::end_if_placed_now;
use crate::state::gang::Role;
use crate::state::gpu_time::{KeptEnd, kept_end};

/// Why a plan places something for a request.
#[derive(Clone, Copy)]
pub(crate) enum Purpose<'a> {
    /// The request waits and has its turn.
    Serve,
    /// The request is overdue and jumps the queue.
    ServeOverdue,
    /// A lease of the request is under reclaim and needs a new place.
    Replace(LeaseId, &'a Lease),
    /// The request's gang runs and grows.
    Join,
}

/// A placement of the plan in progress.
pub(crate) struct Placed<'a> {
    pub(crate) id: RequestId,
    pub(crate) request: &'a Request,
    /// The placement, at one donor or in parts at several.
    pub(crate) parts: Found,
    purpose: Purpose<'a>,
    institution: &'a str,
    end: Timestamp,
    kept_end: Option<KeptEnd>,
}

impl<'a> Placed<'a> {
    pub(super) fn new(
        snapshot: &Snapshot<'a>,
        id: RequestId,
        request: &'a Request,
        parts: Found,
        purpose: Purpose<'a>,
    ) -> Self {
        let tenant = snapshot.bundle.tenants.get(request.spec.tenant.as_str());
        let institution = tenant.map_or("", |tenant| tenant.spec.institution.as_str());
        let end = end_if_placed_now(snapshot.state, request.spec.duration);
        let role = match purpose {
            Purpose::Serve | Purpose::ServeOverdue => Role::Starts,
            Purpose::Replace(lease, _) => Role::Replaces(lease),
            Purpose::Join => Role::Joins,
        };
        let kept_end = kept_end(snapshot.state, request, role);
        Self { id, request, parts, purpose, institution, end, kept_end }
    }

    pub(crate) fn serves(&self, request: &Request) -> bool {
        std::ptr::eq(self.request, request)
    }

    pub(crate) fn placements(&self) -> impl Iterator<Item = &Placement> {
        self.parts.iter().map(|part| &part.placement)
    }

    /// Total capacity that it takes.
    pub(crate) fn amounts(&self) -> Amounts {
        self.placements().map(Amounts::of).fold(Amounts::default(), Amounts::plus)
    }

    /// Number of shares of all parts.
    pub(crate) fn units(&self) -> u64 {
        self.placements().map(Placement::units).sum()
    }

    /// The parts with their latest end.
    pub(crate) fn held(&self) -> impl Iterator<Item = HeldCapacity<'_>> {
        self.parts.iter().map(|part| self.held_part(part))
    }

    fn held_part<'h>(&'h self, part: &'h FeasiblePlacement) -> HeldCapacity<'h> {
        let counts = LeaseUse {
            tenant: self.request.spec.tenant.as_str(),
            user: &self.request.spec.submitted_by,
            institution: self.institution,
            donor: part.placement.donor.as_str(),
            class: part.class.as_str(),
            agreement: part.agreement.as_deref(),
            gpus_milli: part.placement.milli(),
            replaced: false,
        };
        HeldCapacity { end: self.end, counts, placement: &part.placement, lease: None }
    }

    /// Takes the parts in `snapshot`.
    pub(super) fn take(&self, snapshot: &mut Snapshot<'_>) {
        if let Purpose::Replace(_, lease) = self.purpose {
            snapshot.mark_replaced(lease);
        }
        snapshot.kept_end = self.kept_end;
        for FeasiblePlacement { placement, class, agreement, .. } in &self.parts {
            snapshot.take(&self.request.spec, class, agreement.as_deref(), placement);
        }
        snapshot.kept_end = None;
    }

    /// Undoes [`take`](Self::take).
    pub(super) fn give_back(&self, snapshot: &mut Snapshot<'_>) {
        self.held().for_each(|held| snapshot.release(&held));
        snapshot.kept_end = self.kept_end;
        for FeasiblePlacement { placement, class, .. } in &self.parts {
            snapshot.unbook(&self.request.spec, class, placement.milli());
        }
        snapshot.kept_end = None;
        if let Purpose::Replace(_, lease) = self.purpose {
            snapshot.unmark_replaced(lease);
        }
    }

    /// The placement as `apply` gets it. `None` if there are no parts, which no search returns.
    pub(super) fn proposal(&self) -> Option<ProposedPlacement> {
        let mut parts = self.placements().cloned();
        let placement = parts.next()?;
        let kind = match self.purpose {
            Purpose::Serve | Purpose::ServeOverdue => PlacementKind::Serve,
            Purpose::Replace(lease, _) => PlacementKind::Replace(lease),
            Purpose::Join => PlacementKind::Join,
        };
        let overdue = matches!(self.purpose, Purpose::ServeOverdue);
        Some(ProposedPlacement { request: self.id, placement, more: parts.collect(), kind, overdue })
    }
}
