//! The order in which waiting requests are served: by priority, then by weighted dominant share (of institutions, then
//! of an institution's tenants), then by age, then by id. A gang is served whole or not at all. A request that does not
//! fit holds up no one unless capacity is reserved for it.
//!
//! Shares change as a plan places requests: after each placement the tenant and its institution move to their new
//! positions, in logarithmic time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, btree_map, btree_set};
use std::iter::{Chain, Peekable};
use std::option;

use comity_policy::Bundle;
use comity_types::{RequestId, TenantId};

use crate::model::amounts::Amounts;
use crate::model::request::Request;
use crate::state::State;
use crate::state::fairness::Shares;
use crate::state::queue::ByTenant;

/// A request treated as if it were waiting, with the shortest wait of all.
#[derive(Clone, Copy)]
pub(crate) struct Hypothetical<'a> {
    pub(crate) id: RequestId,
    pub(crate) request: &'a Request,
}

/// Requests of one tenant, oldest first.
type TenantQueue<'a> = Peekable<Chain<btree_set::Iter<'a, RequestId>, option::IntoIter<&'a RequestId>>>;

/// Share, oldest request, name: the lowest is served next.
type ShareKey<'a> = (u64, RequestId, &'a str);

/// Iterates over waiting requests in service order.
pub(crate) struct Order<'a> {
    state: &'a State,
    shares: Shares<'a>,
    levels: Peekable<btree_map::Iter<'a, Reverse<u32>, ByTenant>>,
    hypothetical: Option<&'a Hypothetical<'a>>,
    /// Priority of the hypothetical request, until its level has begun.
    hypothetical_value: Option<u32>,
    institutions: BTreeSet<ShareKey<'a>>,
    institution_queues: BTreeMap<&'a str, InstitutionQueue<'a>>,
    tenant_queues: BTreeMap<&'a str, TenantQueue<'a>>,
    /// Institution and tenant of the request that was served last.
    served: Option<(&'a str, &'a str)>,
    /// Whether only one institution waits at this level: then its share does not matter.
    alone: bool,
}

#[derive(Default)]
struct InstitutionQueue<'a> {
    tenants: BTreeSet<ShareKey<'a>>,
    /// Whether only one tenant waits: then its share does not matter.
    alone: bool,
}

impl<'a> Order<'a> {
    /// Covers all waiting requests, and the hypothetical one.
    pub(crate) fn new(state: &'a State, bundle: &'a Bundle, hypothetical: Option<&'a Hypothetical<'a>>) -> Self {
        let value = |it: &Hypothetical<'_>| {
            let class = it.request.spec.priority.as_ref().map(comity_types::PriorityName::as_str);
            bundle.priority_value(class)
        };
        Self {
            state,
            shares: Shares::new(state, bundle),
            levels: state.derived.queue.levels.iter().peekable(),
            hypothetical,
            hypothetical_value: hypothetical.map(value),
            institutions: BTreeSet::new(),
            institution_queues: BTreeMap::new(),
            tenant_queues: BTreeMap::new(),
            served: None,
            alone: true,
        }
    }

    /// Adds placed amounts to the share of a tenant.
    pub(crate) fn count_placement(&mut self, tenant: &'a str, amounts: Amounts) {
        self.shares.add(tenant, amounts);
    }

    /// Puts the tenant served last back at the position of its new share.
    fn requeue_served(&mut self) {
        let Some((institution, tenant)) = self.served.take() else { return };
        let front = self.tenant_queues.get_mut(tenant).and_then(|queue| queue.peek().copied().copied());
        let Some(queue) = self.institution_queues.get_mut(institution) else { return };
        if let Some(front) = front {
            let share = if queue.alone { 0 } else { self.shares.tenant(tenant) };
            queue.tenants.insert((share, front, tenant));
        }
        if let Some((_, front, _)) = queue.tenants.first() {
            let share = if self.alone { 0 } else { self.shares.institution(institution) };
            self.institutions.insert((share, *front, institution));
        }
    }

    /// Begins the next lower priority; returns false after the last.
    fn next_level(&mut self) -> bool {
        let next = self.levels.peek().map(|(value, _)| value.0);
        let value = self.hypothetical_value.take_if(|value| next.is_none_or(|next| next <= *value));
        let hypothetical = self.hypothetical.filter(|_| value.is_some());
        let level = if value.is_some() && value != next { None } else { self.levels.next() };
        if level.is_none() && hypothetical.is_none() {
            return false;
        }
        let mut by_institution: BTreeMap<&'a str, Vec<(&'a TenantId, RequestId)>> = BTreeMap::new();
        self.tenant_queues.clear();
        self.institution_queues.clear();
        let mut add = |tenant: &'a TenantId, queue: btree_set::Iter<'a, RequestId>, last: Option<&'a RequestId>| {
            let mut queue = queue.chain(last).peekable();
            let Some(front) = queue.peek().copied() else { return };
            let institution = self.shares.institution_of(tenant.as_str());
            by_institution.entry(institution).or_default().push((tenant, *front));
            self.tenant_queues.insert(tenant.as_str(), queue);
        };
        let level = level.map(|(_, level)| level);
        let entry = hypothetical.map(|it| (&it.request.spec.tenant, &it.id));
        for (tenant, queue) in level.into_iter().flatten() {
            add(tenant, queue.iter(), entry.filter(|(owner, _)| *owner == tenant).map(|(_, id)| id));
        }
        if let Some((tenant, id)) = entry.filter(|(owner, _)| level.is_none_or(|level| !level.contains_key(*owner))) {
            add(tenant, btree_set::Iter::default(), Some(id));
        }
        self.alone = by_institution.len() == 1;
        for (institution, tenants) in by_institution {
            let alone = tenants.len() == 1;
            let mut queue = InstitutionQueue { tenants: BTreeSet::new(), alone };
            for (tenant, front) in tenants {
                let share = if alone { 0 } else { self.shares.tenant(tenant.as_str()) };
                queue.tenants.insert((share, front, tenant.as_str()));
            }
            if let Some((_, front, _)) = queue.tenants.first() {
                let share = if self.alone { 0 } else { self.shares.institution(institution) };
                self.institutions.insert((share, *front, institution));
            }
            self.institution_queues.insert(institution, queue);
        }
        true
    }
}

impl<'a> Iterator for Order<'a> {
    type Item = (RequestId, &'a Request);

    fn next(&mut self) -> Option<Self::Item> {
        self.requeue_served();
        loop {
            let Some((_, _, institution)) = self.institutions.pop_first() else {
                if self.next_level() {
                    continue;
                }
                return None;
            };
            let Some((_, _, tenant)) = self.institution_queues.get_mut(institution).and_then(|m| m.tenants.pop_first())
            else {
                continue;
            };
            let next = self.tenant_queues.get_mut(tenant).and_then(Iterator::next);
            self.served = Some((institution, tenant));
            let request = |id: &RequestId| {
                let hypothetical = self.hypothetical.filter(|it| it.id == *id).map(|it| it.request);
                hypothetical.or_else(|| self.state.requests.get(id))
            };
            match next.and_then(|id| Some((*id, request(id)?))) {
                Some(next) => return Some(next),
                None => self.requeue_served(),
            }
        }
    }
}
