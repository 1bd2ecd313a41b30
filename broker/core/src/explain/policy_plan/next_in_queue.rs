//! Who would be served next under a bundle.

use std::collections::BTreeMap;

use comity_types::{ClusterId, RequestId, TenantId};

use super::request_effects::starts;
use super::{Effects, Planned, bundle};
use crate::model::amounts::Amounts;
use crate::scheduler::order::Order;

/// Requests that are named: who is next, not the whole queue.
const MAX_NEXT_NAMED: usize = 10;
/// Places in the queue that are compared.
const MAX_PLACES_COMPARED: usize = 10_000;

/// A request that would be served next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextInQueue {
    /// The request.
    pub request: RequestId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its place under the bundle in force, from 1; `None` if it is further back than 10,000, or while none is in force.
    pub place_before: Option<usize>,
    /// Where it would start at once; empty if it would wait.
    pub starts_at: Vec<ClusterId>,
}

/// The first requests in the order in which they would be served; the count is that of all.
pub(super) fn next_in_queue(before: &Planned<'_>, after: &Planned<'_>) -> Effects<NextInQueue> {
    let places: BTreeMap<RequestId, usize> = order(before, MAX_PLACES_COMPARED).into_iter().zip(1..).collect();
    let starts = starts(&after.plan);
    let named = order(after, MAX_NEXT_NAMED).into_iter().filter_map(|id| {
        Some(NextInQueue {
            request: id,
            tenant: after.state.requests.get(&id)?.spec.tenant.clone(),
            place_before: places.get(&id).copied(),
            starts_at: starts.get(&id).into_iter().flatten().cloned().collect(),
        })
    });
    Effects { named: named.collect(), count: after.state.queued_len(), unexamined: 0 }
}

/// The first waiting requests in service order, if each gets what it asks for.
fn order(planned: &Planned<'_>, limit: usize) -> Vec<RequestId> {
    let Some(bundle) = bundle(planned.state) else { return Vec::new() };
    let mut order = Order::new(planned.state, bundle, None);
    let mut found = Vec::new();
    while found.len() < limit
        && let Some((id, request)) = order.next()
    {
        order.count_placement(request.spec.tenant.as_str(), Amounts::asked(&request.spec));
        found.push(id);
    }
    found
}
