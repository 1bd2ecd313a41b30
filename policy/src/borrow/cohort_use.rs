//! How much of the shared quota of each cohort its members use.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bundle::Bundle;
use crate::bundle::cohorts::{CohortIndex, CohortMember};

/// The use of shared quotas, kept current as leases come and go: a decision need not look at every member.
#[derive(Clone, Debug, Default)]
pub struct CohortUse {
    index: Arc<CohortIndex>,
    /// Milli-GPU by cohort.
    shared: BTreeMap<String, u64>,
}

/// Whether a lease begins or ceases to count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Counting {
    Begins,
    Ceases,
}

impl CohortUse {
    pub(super) fn of(bundle: &Bundle) -> Self {
        Self { index: Arc::clone(&bundle.cohorts), shared: BTreeMap::new() }
    }

    pub(super) fn index(&self) -> Option<Arc<CohortIndex>> {
        (!self.index.is_empty()).then(|| Arc::clone(&self.index))
    }

    /// Accounts a lease of `milli`, of a member that uses `used_milli` since then.
    pub(super) fn account(&mut self, member: &CohortMember, counting: Counting, milli: u64, used_milli: u64) {
        let other_milli = match counting {
            Counting::Begins => used_milli.saturating_sub(milli),
            Counting::Ceases => used_milli.saturating_add(milli),
        };
        let parts = [used_milli, other_milli].map(|used| member.shared_part(used));
        let change = parts[0].abs_diff(parts[1]);
        if change == 0 {
            return;
        }
        match counting {
            Counting::Begins => match self.shared.get_mut(&member.cohort) {
                Some(sum) => *sum = sum.saturating_add(change),
                None => _ = self.shared.insert(member.cohort.clone(), change),
            },
            Counting::Ceases => {
                if let Some(sum) = self.shared.get_mut(&member.cohort) {
                    *sum = sum.saturating_sub(change);
                    if *sum == 0 {
                        self.shared.remove(&member.cohort);
                    }
                }
            }
        }
    }

    /// What the members of a cohort use of its shared quota, in milli-GPU.
    pub(super) fn shared_milli(&self, cohort: &str) -> u64 {
        self.shared.get(cohort).copied().unwrap_or(0)
    }
}

/// The sums alone: the index is that of the bundle.
impl PartialEq for CohortUse {
    fn eq(&self, other: &Self) -> bool {
        self.shared == other.shared
    }
}

impl Eq for CohortUse {}
