//! Index of the requests that may be placed, in the orders that the scheduler needs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use comity_types::{RequestId, TenantId};

use crate::model::request::Request;
use crate::model::time::Timestamp;

/// Requests of one priority by tenant, oldest first.
pub(crate) type ByTenant = BTreeMap<TenantId, BTreeSet<RequestId>>;

/// Waiting requests whose start window is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// By value of their priority class, highest first.
    pub(crate) levels: BTreeMap<Reverse<u32>, ByTenant>,
    /// By waiting time, longest first.
    pub(crate) by_age: BTreeSet<(Timestamp, RequestId)>,
}

impl Queue {
    /// Adds or removes a request according to its state. `value` is the value of its priority class under the policy in
    /// force.
    pub(crate) fn note(&mut self, id: RequestId, request: &Request, value: u32) {
        let tenant = &request.spec.tenant;
        if request.waits() {
            self.by_age.insert((request.waits_since(), id));
            self.levels.entry(Reverse(value)).or_default().entry(tenant.clone()).or_default().insert(id);
            return;
        }
        self.by_age.remove(&(request.waits_since(), id));
        let Some(level) = self.levels.get_mut(&Reverse(value)) else { return };
        let Some(waiting) = level.get_mut(tenant) else { return };
        waiting.remove(&id);
        if waiting.is_empty() {
            level.remove(tenant);
        }
        if level.is_empty() {
            self.levels.remove(&Reverse(value));
        }
    }
}
