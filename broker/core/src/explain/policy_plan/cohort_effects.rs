//! Quotas of cohorts that a bundle would have lend, or let borrow, more or less.

use std::collections::BTreeSet;

use comity_policy::CohortTerms;

use super::{Effects, bundle};
use crate::state::State;

/// A quota whose part in its cohort would change, if only because another member's does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CohortEffect {
    /// The quota.
    pub quota: String,
    /// Its terms under the bundle in force; `None` if it is in no cohort.
    pub before: Option<CohortTerms>,
    /// The same under the new bundle.
    pub after: Option<CohortTerms>,
    /// Thousandths of GPUs that it counts now, as the new bundle has it, or the one in force if the new one lacks it.
    pub used_milli: u64,
}

/// The quotas whose part in a cohort would change, by name.
pub(super) fn cohort_effects(before: &State, after: &State) -> Effects<CohortEffect> {
    let bundles = [bundle(before), bundle(after)];
    let names: BTreeSet<&String> = bundles.iter().flatten().flat_map(|bundle| bundle.quotas.keys()).collect();
    let effect = |quota: &String| {
        let [before, now] = bundles.map(|bundle| bundle.and_then(|bundle| bundle.cohort_terms(quota)));
        let counting = bundles.into_iter().rev().flatten().find(|bundle| bundle.quotas.contains_key(quota));
        let used_milli = counting.map_or(0, |bundle| bundle.quota_used_milli(quota, after.usage()));
        (before != now).then(|| CohortEffect { quota: quota.clone(), before, after: now, used_milli })
    };
    names.into_iter().filter_map(effect).collect()
}
