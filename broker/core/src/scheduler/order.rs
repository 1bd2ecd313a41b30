//! In which order waiting requests are served: by priority, then by weighted dominant share (institutions first, then
//! the tenants of one), then by age, then by id. Gangs are served whole or not at all; one that does not fit now does
//! not hold up those behind it, unless capacity is reserved for it.
//!
//! Shares move while a plan places: after each placement the tenant and its institution are put where they belong,
//! which takes time logarithmic in how many there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, btree_map, btree_set};
use std::iter::{Chain, Peekable};
use std::option;

use comity_policy::Bundle;

use crate::model::amounts::Amounts;
use crate::model::id::{RequestId, TenantId};
use crate::model::request::Request;
use crate::state::State;
use crate::state::fairness::Shares;
use crate::state::queue::ByTenant;

/// A request that is looked at as if it waited; nobody waits for less long.
#[derive(Clone, Copy)]
pub(crate) struct Hypothetical<'a> {
    pub(crate) id: RequestId,
    pub(crate) request: &'a Request,
}

/// Requests of one tenant, oldest first.
type Waiting<'a> = Peekable<Chain<btree_set::Iter<'a, RequestId>, option::IntoIter<&'a RequestId>>>;

/// Share, oldest request and name: the lowest is next.
type Rank<'a> = (u64, RequestId, &'a str);

/// Waiting requests in the order in which they are served.
pub(crate) struct Order<'a> {
    state: &'a State,
    shares: Shares<'a>,
    levels: Peekable<btree_map::Iter<'a, Reverse<u32>, ByTenant>>,
    hypothetical: Option<&'a Hypothetical<'a>>,
    /// The value of its priority, until its level has begun.
    as_if_value: Option<u32>,
    institutions: BTreeSet<Rank<'a>>,
    members: BTreeMap<&'a str, Members<'a>>,
    waiting: BTreeMap<&'a str, Waiting<'a>>,
    /// Institution and tenant of the request that was served last.
    served: Option<(&'a str, &'a str)>,
    /// Whether one institution alone waits at this level: then its share does not matter.
    alone: bool,
}

#[derive(Default)]
struct Members<'a> {
    tenants: BTreeSet<Rank<'a>>,
    /// Whether one tenant alone waits.
    alone: bool,
}

impl<'a> Order<'a> {
    /// All that waits, and one that is looked at as if it did.
    pub(crate) fn new(state: &'a State, bundle: &'a Bundle, hypothetical: Option<&'a Hypothetical<'a>>) -> Self {
        let value = |it: &Hypothetical<'_>| {
            let class = it.request.spec.priority.as_ref().map(crate::PriorityName::as_str);
            bundle.priority_value(class)
        };
        Self {
            state,
            shares: Shares::new(state, bundle),
            levels: state.derived.queue.levels.iter().peekable(),
            hypothetical,
            as_if_value: hypothetical.map(value),
            institutions: BTreeSet::new(),
            members: BTreeMap::new(),
            waiting: BTreeMap::new(),
            served: None,
            alone: true,
        }
    }

    /// Counts in what is placed for a tenant.
    pub(crate) fn placed(&mut self, tenant: &'a str, amounts: Amounts) {
        self.shares.add(tenant, amounts);
    }

    /// Puts the tenant that was served last where it belongs now.
    fn put_back(&mut self) {
        let Some((institution, tenant)) = self.served.take() else { return };
        let front = self.waiting.get_mut(tenant).and_then(|waiting| waiting.peek().copied().copied());
        let Some(members) = self.members.get_mut(institution) else { return };
        if let Some(front) = front {
            let share = if members.alone { 0 } else { self.shares.tenant(tenant) };
            members.tenants.insert((share, front, tenant));
        }
        if let Some((_, front, _)) = members.tenants.first() {
            let share = if self.alone { 0 } else { self.shares.institution(institution) };
            self.institutions.insert((share, *front, institution));
        }
    }

    /// Begins with the next lower priority; false at the end.
    fn next_level(&mut self) -> bool {
        let next = self.levels.peek().map(|(value, _)| value.0);
        let value = self.as_if_value.take_if(|value| next.is_none_or(|next| next <= *value));
        let hypothetical = self.hypothetical.filter(|_| value.is_some());
        let level = if value.is_some() && value != next { None } else { self.levels.next() };
        if level.is_none() && hypothetical.is_none() {
            return false;
        }
        let mut by_institution: BTreeMap<&'a str, Vec<(&'a TenantId, RequestId)>> = BTreeMap::new();
        self.waiting.clear();
        self.members.clear();
        let mut add = |tenant: &'a TenantId, waiting: btree_set::Iter<'a, RequestId>, last: Option<&'a RequestId>| {
            let mut waiting = waiting.chain(last).peekable();
            let Some(front) = waiting.peek().copied() else { return };
            let institution = self.shares.institution_of(tenant.as_str());
            by_institution.entry(institution).or_default().push((tenant, *front));
            self.waiting.insert(tenant.as_str(), waiting);
        };
        let level = level.map(|(_, level)| level);
        let own = hypothetical.map(|it| (&it.request.spec.tenant, &it.id));
        for (tenant, waiting) in level.into_iter().flatten() {
            add(tenant, waiting.iter(), own.filter(|(own, _)| *own == tenant).map(|(_, id)| id));
        }
        if let Some((tenant, id)) = own.filter(|(own, _)| level.is_none_or(|level| !level.contains_key(*own))) {
            add(tenant, btree_set::Iter::default(), Some(id));
        }
        self.alone = by_institution.len() == 1;
        for (institution, tenants) in by_institution {
            let alone = tenants.len() == 1;
            let mut members = Members { tenants: BTreeSet::new(), alone };
            for (tenant, front) in tenants {
                let share = if alone { 0 } else { self.shares.tenant(tenant.as_str()) };
                members.tenants.insert((share, front, tenant.as_str()));
            }
            if let Some((_, front, _)) = members.tenants.first() {
                let share = if self.alone { 0 } else { self.shares.institution(institution) };
                self.institutions.insert((share, *front, institution));
            }
            self.members.insert(institution, members);
        }
        true
    }
}

impl<'a> Iterator for Order<'a> {
    type Item = (RequestId, &'a Request);

    fn next(&mut self) -> Option<Self::Item> {
        self.put_back();
        loop {
            let Some((_, _, institution)) = self.institutions.pop_first() else {
                if self.next_level() {
                    continue;
                }
                return None;
            };
            let Some((_, _, tenant)) = self.members.get_mut(institution).and_then(|m| m.tenants.pop_first()) else {
                continue;
            };
            let next = self.waiting.get_mut(tenant).and_then(Iterator::next);
            self.served = Some((institution, tenant));
            let request = |id: &RequestId| {
                let hypothetical = self.hypothetical.filter(|it| it.id == *id).map(|it| it.request);
                hypothetical.or_else(|| self.state.requests.get(id))
            };
            match next.and_then(|id| Some((*id, request(id)?))) {
                Some(next) => return Some(next),
                None => self.put_back(),
            }
        }
    }
}
