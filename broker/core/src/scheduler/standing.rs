//! Where a waiting request stands in the queue.

use std::collections::{BTreeMap, BTreeSet};

use super::order::Order;
use super::outlook::{alone, beside_kept};
use super::plan::{Plan, Planner};
use super::reclaims::Reclaims;
use super::reserve::{Reserved, held_after};
use super::view::View;
use crate::fairness::{Amounts, Shares};
use crate::id::{ClusterId, RequestId};
use crate::limits::MAX_PLACEMENTS_PER_PLAN;
use crate::request::Request;
use crate::state::State;
use crate::time::Timestamp;

/// Parts of one that shares are given in.
const MILLION: u128 = 1_000_000;

/// Where a waiting request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// How many are served before it, and itself, if each that is served gets what it asks for; 0 while its start
    /// window has not opened.
    pub place: usize,
    /// How many wait.
    pub waiting: usize,
    /// Its tenant's part of what all hold or held who wait or hold something, in millionths.
    pub share_ppm: u64,
    /// The part that weights and reciprocity entitle its tenant to, among the same.
    pub entitled_ppm: u64,
    /// What is reserved, for this request or for another one.
    pub reserved: Option<Reserved>,
    /// When and where it could start under the present ends of leases and those of leases that are being reclaimed,
    /// beside what is kept for others, were it alone; now, if it fits now; never before its start window opens. `None`:
    /// no end makes room.
    pub earliest: Option<(Timestamp, Vec<ClusterId>)>,
}

/// Where `id` stands, and what is being reclaimed for it; `None` if it does not wait, or no policy is in force.
#[must_use]
pub(super) fn standing(state: &State, id: RequestId) -> Option<(Standing, Option<Reclaims>)> {
    let view = View::new(state)?;
    let request = state.requests.get(&id).filter(|_| state.derived.queued.contains(&id))?;
    let (share_ppm, entitled_ppm) = share_and_entitlement(state, &view, request);
    let (mut planner, mut plan) = (Planner::default(), Plan::default());
    let mut run = planner.begin(state)?;
    run.serve(&mut plan, MAX_PLACEMENTS_PER_PLAN);
    let is_placed = plan.placements.iter().any(|placed| placed.request == id);
    let reclaims = Reclaims::given(state, id).or_else(|| Reclaims::planned(state, &plan, id));
    let reclaims = reclaims.filter(|_| !is_placed);
    let earliest = if is_placed {
        alone(&view, held_after(state, &plan.reclaims), &request.spec)
    } else {
        beside_kept(&run, &plan, &view, Vec::new(), (request, reclaims.is_some()))
    };
    let standing = Standing {
        place: if request.early { 0 } else { place(state, &view, id) },
        waiting: state.derived.queue.by_age.len(),
        share_ppm,
        entitled_ppm,
        reserved: plan.reserved,
        earliest,
    };
    Some((standing, reclaims))
}

/// Its place if each request is given what it asks for, so that shares move as they will.
fn place(state: &State, view: &View<'_>, id: RequestId) -> usize {
    let mut order = Order::new(state, view.bundle, None);
    let mut place = 0;
    while let Some((next, request)) = order.next() {
        place += 1;
        if next == id {
            break;
        }
        order.placed(request.spec.tenant.as_str(), Amounts::asked(&request.spec));
    }
    place
}

/// Parts among all tenants that wait or hold something.
fn share_and_entitlement(state: &State, view: &View<'_>, request: &Request) -> (u64, u64) {
    let mut shares = Shares::new(state, view.bundle);
    let waiting = state.derived.queue.levels.values().flat_map(BTreeMap::keys);
    let holding = state.derived.holdings.tenants();
    let own = &request.spec.tenant;
    let tenants: BTreeSet<&str> = waiting.chain(holding).chain([own]).map(|tenant| tenant.as_str()).collect();
    let weight = |tenant: &str| view.bundle.tenants.get(tenant).map_or(0, |tenant| u128::from(tenant.spec.weight));
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
