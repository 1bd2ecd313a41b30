//! Estimates the expected work from recent work and history.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::work::{WorkMix, WorkType};

/// Expected work is expressed in 1/1024 parts.
const MIX_PARTS: u64 = 1_024;
/// Shares of a mix are fixed-point numbers with 24 fractional bits: sums of their squares fit in 128 bits.
const SHARE_BITS: u32 = 24;
/// Counts are fixed-point numbers with 20 fractional bits. A recent task counts 1, a historical one at most 1.
const COUNT_BITS: u32 = 20;
/// Larger gangs weigh no more than gangs of this many devices.
const MAX_GANG_WEIGHT: u32 = 1 << 10;

/// Differences above this many of [`MIX_PARTS`] are worth recomputing costs.
const MAX_DRIFT_PARTS: u64 = 64;

/// Beyond this sample size, more tasks no longer reduce the uncertainty.
const SATURATION: u64 = 1 << 12;

/// The expected work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Its types, in parts of [`MIX_PARTS`].
    pub(crate) parts: BTreeMap<WorkType, u64>,
    /// Sample size in tasks: the smaller, the more is unknown.
    pub(crate) tasks: u64,
}

impl Expected {
    /// Combines recent work with history, which counts [`history_weight`] tasks.
    pub(crate) fn of(lately: &WorkMix, known: &WorkMix) -> Self {
        let history_weight = history_weight(lately, known);
        let tasks = u64::try_from(history_weight.saturating_add(u128::from(lately.all()))).unwrap_or(u64::MAX);
        Self { parts: mix_parts(lately, known, history_weight), tasks }
    }

    /// Whether `other` differs enough to recompute costs.
    pub(crate) fn differs_materially_from(&self, other: &Self) -> bool {
        let few = |tasks: u64| tasks.min(SATURATION).checked_ilog2();
        distance(&self.parts, &other.parts) > MAX_DRIFT_PARTS || few(self.tasks) != few(other.tasks)
    }
}

fn mix_parts(lately: &WorkMix, known: &WorkMix, history_weight: u128) -> BTreeMap<WorkType, u64> {
    let each = (history_weight << COUNT_BITS) / u128::from(known.all().max(1));
    let mut counts: BTreeMap<&WorkType, u128> = BTreeMap::new();
    for (work, count) in lately.types() {
        *counts.entry(work).or_default() += u128::from(count) << COUNT_BITS;
    }
    for (work, count) in known.types() {
        *counts.entry(work).or_default() += u128::from(count) * each;
    }
    let all: u128 = counts.values().sum();
    let part = |count: u128| u64::try_from(count * u128::from(MIX_PARTS) / all.max(1)).unwrap_or(MIX_PARTS).max(1);
    counts.into_iter().map(|(work, count)| (work.clone(), part(count))).collect()
}

/// The number of tasks that history counts as: all of it while recent work is like it, and fewer the more they differ.
/// Compares both by work type and by number of devices, since gangs are few, yet matter most to packing.
fn history_weight(lately: &WorkMix, known: &WorkMix) -> u128 {
    let mut by_type: BTreeMap<&WorkType, Counts> = BTreeMap::new();
    let mut by_size: BTreeMap<u32, Counts> = BTreeMap::new();
    for (mix, is_recent) in [(lately, true), (known, false)] {
        for (work, count) in mix.types() {
            let (of_type, of_size) = (by_type.entry(work).or_default(), by_size.entry(work.gpus.count).or_default());
            for compared in [of_type, of_size] {
                *(if is_recent { &mut compared.recent } else { &mut compared.historical }) += u128::from(count);
            }
        }
    }
    let types = by_type.values().map(|compared| (compared, 1));
    let sizes = by_size.iter().map(|(size, compared)| (compared, (*size).min(MAX_GANG_WEIGHT)));
    let (recent, historical) = (u128::from(lately.all()), u128::from(known.all()));
    let all = Counts { recent, historical };
    // Chance differences average out over many types. Sizes are few, and rare sizes weigh much: they need more
    // tolerance.
    shrunk_count(types, all, 2).min(shrunk_count(sizes, all, 9))
}

/// Occurrences in recent work and in history.
#[derive(Clone, Copy, Default)]
struct Counts {
    recent: u128,
    historical: u128,
}

/// The number of tasks that a history counts as, given how far the shares of weighted groups differ.
///
/// Two samples of the same work differ by chance. The sum of squares of the weighted differences of their shares is
/// about `spread / recent + spread / historical`, where `spread` is the sum of `weight² · share · (1 − share)`; it
/// rarely exceeds `tolerance` times that. The excess is `bias`: by that much history misleads. When combining a biased
/// estimate with an unbiased one, the least squared error results from weighing each by the inverse of its own error;
/// so history counts as `spread / (spread / historical + bias)` tasks. (This is James–Stein shrinkage towards history,
/// by how well history has predicted recent work.)
fn shrunk_count<'c>(groups: impl Iterator<Item = (&'c Counts, u32)>, all: Counts, tolerance: u128) -> u128 {
    if all.recent == 0 || all.historical == 0 {
        return all.historical;
    }
    let share = |count: u128, of: u128| (count << SHARE_BITS) / of;
    let (mut apart, mut spread) = (0_u128, 0_u128);
    for (of, weight) in groups {
        let square = u128::from(weight) * u128::from(weight);
        let distance = share(of.recent, all.recent).abs_diff(share(of.historical, all.historical));
        apart = apart.saturating_add(square * distance * distance);
        let both = share(of.recent + of.historical, all.recent + all.historical);
        spread = spread.saturating_add(square * both * ((1 << SHARE_BITS) - both));
    }
    let bias = apart.saturating_sub((spread / all.recent + spread / all.historical).saturating_mul(tolerance));
    if bias == 0 {
        return all.historical;
    }
    spread.saturating_mul(all.historical) / spread.saturating_add(bias.saturating_mul(all.historical))
}

/// The sum of absolute differences of two mixes, in parts.
fn distance(one: &BTreeMap<WorkType, u64>, other: &BTreeMap<WorkType, u64>) -> u64 {
    let of = |mix: &BTreeMap<WorkType, u64>, work: &WorkType| mix.get(work).copied().unwrap_or(0);
    let both: BTreeSet<&WorkType> = one.keys().chain(other.keys()).collect();
    both.into_iter().map(|work| of(one, work).abs_diff(of(other, work))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` work types, starting with type `first`, each `times` times.
    fn work(first: u64, count: u64, times: u64) -> WorkMix {
        let mut mix = WorkMix::default();
        (first..first + count).for_each(|cpu| mix.add(WorkType::without_gpus(cpu, 0), times));
        mix
    }

    fn part(parts: &BTreeMap<WorkType, u64>, cpu_milli: u64) -> u64 {
        parts.get(&WorkType::without_gpus(cpu_milli, 0)).copied().unwrap_or(0)
    }

    #[test]
    fn history_counts_fully_while_recent_work_is_like_it() {
        assert_eq!(history_weight(&WorkMix::default(), &work(0, 10, 40)), 400);
        assert_eq!(history_weight(&work(0, 10, 1), &work(0, 10, 40)), 400);
        // Of ten types, four came twice and two not at all: chance.
        let mut lately = work(0, 8, 1);
        (0..4).for_each(|cpu| lately.add(WorkType::without_gpus(cpu, 0), 1));
        assert_eq!(history_weight(&lately, &work(0, 10, 40)), 400);
    }

    #[test]
    fn a_foreign_history_fades_as_work_arrives() {
        let foreign = work(100, 10, 800);
        let counts: Vec<u128> = [1, 2, 10, 100].map(|times| history_weight(&work(0, 10, times), &foreign)).to_vec();
        assert!(counts.is_sorted_by(|a, b| a >= b) && counts[0] < 200 && counts[3] < 10, "{counts:?}");
        let expected = Expected::of(&work(0, 10, 10), &foreign).parts;
        assert!(part(&expected, 0) > 90 && part(&expected, 100) <= 8, "{expected:?}");
    }

    #[test]
    fn unprecedented_gangs_reduce_the_weight_of_history() {
        let gangs = |count: u32, times: u64| {
            let mut work = WorkType::without_gpus(1_000, 0);
            work.gpus.count = count;
            let mut mix = WorkMix::default();
            mix.add(work, times);
            mix
        };
        let mix = |singles: u64, eights: u64| {
            let mut mix = gangs(1, singles);
            gangs(8, eights).types().for_each(|(work, times)| mix.add(work.clone(), times));
            mix
        };
        let known = mix(8_000, 40);
        assert_eq!(history_weight(&mix(398, 2), &known), 8_040, "the same share");
        assert_eq!(history_weight(&mix(99, 1), &known), 8_040, "one may be chance");
        assert!(history_weight(&mix(388, 12), &known) < 100, "six times the share is not chance");
    }

    #[test]
    fn a_thin_history_counts_little() {
        assert_eq!(history_weight(&work(0, 2, 300), &work(0, 2, 10)), 20);
        let expected = Expected::of(&work(0, 4, 75), &work(0, 2, 10));
        assert!((250..=256).contains(&part(&expected.parts, 3)), "{expected:?}");
        assert!((300..=320).contains(&expected.tasks), "{}", expected.tasks);
    }

    #[test]
    fn the_largest_counts_do_not_overflow() {
        let (one, other) = (work(0, 1, u64::MAX), work(1, 1, u64::MAX));
        assert_eq!(part(&Expected::of(&one, &one).parts, 0), 1_024);
        assert_eq!(part(&Expected::of(&one, &other).parts, 0), 1_024);
        assert_eq!(Expected::of(&WorkMix::default(), &WorkMix::default()), Expected::default());
    }

    #[test]
    fn a_doubled_sample_triggers_a_new_estimate() {
        let (few, more) =
            (Expected::of(&work(0, 4, 10), &WorkMix::default()), Expected::of(&work(0, 4, 20), &WorkMix::default()));
        assert_eq!(few.parts, more.parts);
        assert!(
            few.differs_materially_from(&more)
                && !few.differs_materially_from(&Expected::of(&work(0, 4, 11), &WorkMix::default()))
        );
    }
}
