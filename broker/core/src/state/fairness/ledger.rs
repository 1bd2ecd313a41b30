//! The past use and lending of all tenants and institutions.

use std::collections::BTreeMap;

use comity_types::{InstitutionId, TenantId};
use serde::{Deserialize, Serialize};

use crate::model::amounts::Amounts;
use crate::model::lease::Lease;
use crate::model::time::{Millis, Timestamp};
use crate::state::fairness::holdings::Holdings;
use crate::state::fairness::past::Past;

/// Past use and past lending. Advances when holdings change; an entry decays to nothing within 64 half-lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    pub(crate) tenants: BTreeMap<TenantId, Past>,
    pub(crate) institutions: BTreeMap<InstitutionId, Past>,
    pub(crate) lenders: BTreeMap<InstitutionId, Past>,
}

impl Ledger {
    /// Accounts until `now` the use of a lease's tenant, institution and lender. Must run before their holdings change.
    pub(crate) fn advance(
        &mut self,
        lease: &Lease,
        lender: Option<&InstitutionId>,
        now: Timestamp,
        half_life: Millis,
        held: &Holdings,
    ) {
        advance_one(&mut self.tenants, &lease.tenant, &held.tenants, now, half_life);
        advance_one(&mut self.institutions, &lease.institution, &held.institutions, now, half_life);
        if let Some(lender) = lender {
            advance_one(&mut self.lenders, lender, &held.lenders, now, half_life);
        }
    }

    /// Accounts everybody's use until `now`, and drops entries that have decayed to nothing.
    pub(crate) fn advance_all(&mut self, now: Timestamp, held: &Holdings, half_life: Millis) {
        advance_each(&mut self.tenants, &held.tenants, now, half_life);
        advance_each(&mut self.institutions, &held.institutions, now, half_life);
        advance_each(&mut self.lenders, &held.lenders, now, half_life);
    }

    /// Shifts all timestamps after a re-base of log time.
    pub(crate) fn shift(&mut self, ms: i64) {
        let Self { tenants, institutions, lenders } = self;
        for past in tenants.values_mut().chain(institutions.values_mut()).chain(lenders.values_mut()) {
            past.shift(ms);
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.tenants.len() + self.institutions.len() + self.lenders.len()
    }
}

fn advance_one<K: Ord + Clone>(
    pasts: &mut BTreeMap<K, Past>,
    key: &K,
    held: &BTreeMap<K, Amounts>,
    now: Timestamp,
    half_life: Millis,
) {
    let past = pasts.entry(key.clone()).or_insert_with(|| Past::zero(now));
    *past = past.advanced(held.get(key).copied().unwrap_or_default(), now, half_life);
}

fn advance_each<K: Ord + Clone>(
    pasts: &mut BTreeMap<K, Past>,
    held: &BTreeMap<K, Amounts>,
    now: Timestamp,
    half_life: Millis,
) {
    pasts.retain(|key, past| held.contains_key(key) || !past.is_negligible(now, half_life));
    let keys: Vec<K> = pasts.keys().chain(held.keys()).cloned().collect();
    for key in keys {
        advance_one(pasts, &key, held, now, half_life);
    }
}
