//! In which order waiting requests are served: by priority, then by weighted dominant share (institutions first, then the
//! tenants of one), then by age, then by id. Gangs are served whole or not at all; one that does not fit now does not hold up
//! those behind it, unless capacity is reserved for it.
//!
//! Shares move while a plan places: after each placement the tenant and its institution are put where they belong, which
//! takes time logarithmic in how many there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, btree_map, btree_set};
use std::iter::Peekable;

use comity_policy::Bundle;

use crate::fairness::{Amounts, Shares};
use crate::id::{RequestId, TenantId};
use crate::queue::ByTenant;
use crate::request::Request;
use crate::state::State;

/// Share, oldest request and name: the lowest is next.
type Rank<'a> = (u64, RequestId, &'a str);

/// Waiting requests in the order in which they are served.
pub(super) struct Order<'a> {
    state: &'a State,
    shares: Shares<'a>,
    levels: btree_map::Iter<'a, Reverse<u32>, ByTenant>,
    institutions: BTreeSet<Rank<'a>>,
    members: BTreeMap<&'a str, Members<'a>>,
    waiting: BTreeMap<&'a str, Peekable<btree_set::Iter<'a, RequestId>>>,
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
    /// All that waits.
    pub(super) fn new(state: &'a State, bundle: &'a Bundle) -> Self {
        Self {
            state,
            shares: Shares::new(state, bundle),
            levels: state.derived.queue.levels.iter(),
            institutions: BTreeSet::new(),
            members: BTreeMap::new(),
            waiting: BTreeMap::new(),
            served: None,
            alone: true,
        }
    }

    /// Counts in what is placed for a tenant.
    pub(super) fn placed(&mut self, tenant: &'a str, amounts: Amounts) {
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
        let Some((_, level)) = self.levels.next() else { return false };
        let mut by_institution: BTreeMap<&'a str, Vec<(&'a TenantId, RequestId)>> = BTreeMap::new();
        self.waiting.clear();
        self.members.clear();
        for (tenant, waiting) in level {
            let Some(front) = waiting.first() else { continue };
            let institution = self.shares.institution_of(tenant.as_str());
            by_institution.entry(institution).or_default().push((tenant, *front));
            self.waiting.insert(tenant.as_str(), waiting.iter().peekable());
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
            match next.and_then(|id| Some((*id, self.state.requests.get(id)?))) {
                Some(next) => return Some(next),
                None => self.put_back(),
            }
        }
    }
}
