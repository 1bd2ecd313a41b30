//! What work is expected, as parts of a whole.

use std::collections::{BTreeMap, BTreeSet};

use crate::work::{WorkMix, WorkType};

/// The expected work is kept as parts of so many.
const PARTS: u64 = 1_024;

/// Work of the state and known work together, as parts of [`PARTS`].
pub(super) fn parts(lately: &WorkMix, known: &WorkMix) -> BTreeMap<WorkType, u64> {
    let mut counts: BTreeMap<&WorkType, u64> = BTreeMap::new();
    for (work, count) in lately.types().chain(known.types()) {
        let sum = counts.entry(work).or_default();
        *sum = sum.saturating_add(count);
    }
    let all: u128 = counts.values().map(|&count| u128::from(count)).sum();
    let part = |count: u64| u64::try_from(u128::from(count) * u128::from(PARTS) / all.max(1)).unwrap_or(PARTS).max(1);
    counts.into_iter().map(|(work, count)| (work.clone(), part(count))).collect()
}

/// Parts by which two mixes differ.
pub(super) fn difference(one: &BTreeMap<WorkType, u64>, other: &BTreeMap<WorkType, u64>) -> u64 {
    let of = |mix: &BTreeMap<WorkType, u64>, work: &WorkType| mix.get(work).copied().unwrap_or(0);
    let both: BTreeSet<&WorkType> = one.keys().chain(other.keys()).collect();
    both.into_iter().map(|work| of(one, work).abs_diff(of(other, work))).sum()
}
