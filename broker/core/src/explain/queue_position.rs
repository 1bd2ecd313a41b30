//! The position of a waiting request in the queue.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::{ClusterId, RequestId};

use crate::explain::outlook::{outlook_alone, outlook_beside_reservations};
use crate::explain::reclaims::Reclaims;
use crate::feasibility::snapshot::Snapshot;
use crate::model::amounts::Amounts;
use crate::model::limits::MAX_PLACEMENTS_PER_PLAN;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::scheduler::order::Order;
use crate::scheduler::plan::Plan;
use crate::scheduler::planner::Planner;
use crate::scheduler::reserve::{Reserved, held_after_reclaims};
use crate::state::State;
use crate::state::fairness::Shares;

/// Shares are given in millionths.
const MILLION: u128 = 1_000_000;

/// The queue position of a waiting request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePosition {
    /// Position in service order, starting with 1, if each request served gets what it asks for; 0 until its start
    /// window opens.
    pub place: usize,
    /// Number of waiting requests.
    pub waiting: usize,
    /// The tenant's part of present and past usage, among tenants that wait or hold something, in millionths.
    pub share_ppm: u64,
    /// The part that weights and reciprocity entitle the tenant to, among the same tenants.
    pub entitled_ppm: u64,
    /// The current reservation, of this request or another.
    pub reserved: Option<Reserved>,
    /// When and where the request could start as leases end and are reclaimed, alongside reservations for others and if
    /// no other request came first; now, if it fits now; never before its start window opens. `None` if no end makes
    /// room.
    pub earliest: Option<(Timestamp, Vec<ClusterId>)>,
}

/// The queue position of `id`, and the reclaims for it; `None` if it does not wait, or while no policy is in force.
#[must_use]
pub(crate) fn queue_position(state: &State, id: RequestId) -> Option<(QueuePosition, Option<Reclaims>)> {
    let snapshot = Snapshot::new(state)?;
    let request = state.requests.get(&id).filter(|_| state.derived.queued.contains(&id))?;
    let (share_ppm, entitled_ppm) = share_and_entitlement(state, &snapshot, request);
    let (mut planner, mut plan) = (Planner::default(), Plan::default());
    let mut planning = planner.begin(state)?;
    planning.serve(&mut plan, MAX_PLACEMENTS_PER_PLAN);
    let is_placed = plan.placements.iter().any(|placed| placed.request == id);
    let reclaims = Reclaims::given(state, id).or_else(|| Reclaims::planned(state, &plan, id));
    let reclaims = reclaims.filter(|_| !is_placed);
    let earliest = if is_placed {
        outlook_alone(&snapshot, held_after_reclaims(state, &plan.reclaims), &request.spec)
    } else {
        outlook_beside_reservations(&planning, &plan, &snapshot, Vec::new(), request, reclaims.as_ref())
    };
    let position = QueuePosition {
        place: if request.waits() { place(state, &snapshot, id) } else { 0 },
        waiting: state.derived.queue.by_age.len(),
        share_ppm,
        entitled_ppm,
        reserved: plan.reserved,
        earliest,
    };
    Some((position, reclaims))
}

/// The request's place if each request gets what it asks for, which moves shares accordingly.
fn place(state: &State, snapshot: &Snapshot<'_>, id: RequestId) -> usize {
    let mut order = Order::new(state, snapshot.bundle, None);
    let mut place = 0;
    while let Some((next, request)) = order.next() {
        place += 1;
        if next == id {
            break;
        }
        order.count_placement(request.spec.tenant.as_str(), Amounts::asked(&request.spec));
    }
    place
}

/// The tenant's share and entitlement among all tenants that wait or hold something.
fn share_and_entitlement(state: &State, snapshot: &Snapshot<'_>, request: &Request) -> (u64, u64) {
    let mut shares = Shares::new(state, snapshot.bundle);
    let waiting = state.derived.queue.levels.values().flat_map(BTreeMap::keys);
    let holding = state.derived.holdings.tenants();
    let own = &request.spec.tenant;
    let tenants: BTreeSet<&str> = waiting.chain(holding).chain([own]).map(|tenant| tenant.as_str()).collect();
    let weight = |tenant: &str| snapshot.bundle.tenants.get(tenant).map_or(0, |tenant| u128::from(tenant.spec.weight));
    let home = shares.institution_of(own.as_str());
    let (mut used, mut peers, mut institutions) = (0, 0, BTreeSet::new());
    for tenant in tenants {
        used += u128::from(shares.dominant(tenant));
        let institution = shares.institution_of(tenant);
        institutions.insert(institution);
        if institution == home {
            peers += weight(tenant);
        }
    }
    let all: u128 = institutions.iter().map(|institution| shares.weight(institution)).sum();
    let share = u128::from(shares.dominant(own.as_str())) * MILLION / used.max(1);
    let entitled = MILLION * shares.weight(home) / all.max(1) * weight(own.as_str()) / peers.max(1);
    (ppm(share), ppm(entitled))
}

fn ppm(part: u128) -> u64 {
    u64::try_from(part).unwrap_or(u64::MAX)
}
