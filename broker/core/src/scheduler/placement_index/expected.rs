//! What work is expected, as parts of a whole.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::work::{WorkMix, WorkType};

/// The expected work is kept as parts of so many.
const PARTS: u64 = 1_024;
/// Shares of a mix are counted in parts of 2^24: squares of them, and sums of squares, fit in 128 bits with room.
const SHARE_BITS: u32 = 24;
/// A task that came counts as 2^20, one of the history as that or less.
const WEIGHT_BITS: u32 = 20;
/// Larger gangs weigh as much as one of so many devices.
const LARGEST_GANG: u32 = 1 << 10;

/// Expected work is taken again when it differs by so many of [`PARTS`]: costs are computed again with it.
const DRIFT: u64 = 64;

/// From how many tasks on more of them tell nothing more of what is unknown.
const FEW: u64 = 1 << 12;

/// The work that is expected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Its types, as parts of [`PARTS`].
    pub(crate) parts: BTreeMap<WorkType, u64>,
    /// The number of tasks that tell so: the fewer, the more is unknown.
    pub(crate) tasks: u64,
}

impl Expected {
    /// What came lately and what was known before together. What was known counts as [`belief`] says.
    pub(crate) fn of(lately: &WorkMix, known: &WorkMix) -> Self {
        let belief = belief(lately, known);
        let tasks = u64::try_from(belief.saturating_add(u128::from(lately.all()))).unwrap_or(u64::MAX);
        Self { parts: parts(lately, known, belief), tasks }
    }

    /// Whether `other` is so far from this that costs are worth computing again.
    pub(crate) fn is_far_from(&self, other: &Self) -> bool {
        let few = |tasks: u64| tasks.min(FEW).checked_ilog2();
        difference(&self.parts, &other.parts) > DRIFT || few(self.tasks) != few(other.tasks)
    }
}

fn parts(lately: &WorkMix, known: &WorkMix, belief: u128) -> BTreeMap<WorkType, u64> {
    let each = (belief << WEIGHT_BITS) / u128::from(known.all().max(1));
    let mut counts: BTreeMap<&WorkType, u128> = BTreeMap::new();
    for (work, count) in lately.types() {
        *counts.entry(work).or_default() += u128::from(count) << WEIGHT_BITS;
    }
    for (work, count) in known.types() {
        *counts.entry(work).or_default() += u128::from(count) * each;
    }
    let all: u128 = counts.values().sum();
    let part = |count: u128| u64::try_from(count * u128::from(PARTS) / all.max(1)).unwrap_or(PARTS).max(1);
    counts.into_iter().map(|(work, count)| (work.clone(), part(count))).collect()
}

/// As how many tasks the history counts: as all of them while what comes is like it, and as fewer the less it is. It
/// must be like it by type, and by how many devices are asked for at once: gangs are few, and yet most of what packing
/// is about.
fn belief(lately: &WorkMix, known: &WorkMix) -> u128 {
    let mut by_type: BTreeMap<&WorkType, Compared> = BTreeMap::new();
    let mut by_size: BTreeMap<u32, Compared> = BTreeMap::new();
    for (mix, is_new) in [(lately, true), (known, false)] {
        for (work, count) in mix.types() {
            let (of_type, of_size) = (by_type.entry(work).or_default(), by_size.entry(work.gpus.count).or_default());
            for compared in [of_type, of_size] {
                *(if is_new { &mut compared.new } else { &mut compared.old }) += u128::from(count);
            }
        }
    }
    let types = by_type.values().map(|compared| (compared, 1));
    let sizes = by_size.iter().map(|(size, compared)| (compared, (*size).min(LARGEST_GANG)));
    let (new, old) = (u128::from(lately.all()), u128::from(known.all()));
    let all = Compared { new, old };
    // Many types even out what chance does to each; of sizes there are few, and what is rare is heavy.
    shrunk(types, all, 2).min(shrunk(sizes, all, 9))
}

/// How often something came lately, and how often it is in the history.
#[derive(Clone, Copy, Default)]
struct Compared {
    new: u128,
    old: u128,
}

/// As how many tasks a history counts, by how far the shares of some groups, each with its weight, are apart.
///
/// Two samples of the same work differ by chance: the squares of the weighted differences of their shares sum up to
/// about `spread / new + spread / old`, where `spread` is the sum of `weight² · share · (1 − share)`; seldom to
/// `tolerance` times as much. What they differ by more is `bias`: by so much the history misleads. Of an estimate with
/// that bias and one without, the mean with the least squared error weighs each by the inverse of its own; so the
/// history counts as `spread / (spread / old + bias)` tasks. (That is the shrinkage of James and Stein towards a
/// history, by how well it has told so far what came.)
fn shrunk<'c>(groups: impl Iterator<Item = (&'c Compared, u32)>, all: Compared, tolerance: u128) -> u128 {
    if all.new == 0 || all.old == 0 {
        return all.old;
    }
    let share = |count: u128, of: u128| (count << SHARE_BITS) / of;
    let (mut apart, mut spread) = (0_u128, 0_u128);
    for (of, weight) in groups {
        let square = u128::from(weight) * u128::from(weight);
        let difference = share(of.new, all.new).abs_diff(share(of.old, all.old));
        apart = apart.saturating_add(square * difference * difference);
        let both = share(of.new + of.old, all.new + all.old);
        spread = spread.saturating_add(square * both * ((1 << SHARE_BITS) - both));
    }
    let bias = apart.saturating_sub((spread / all.new + spread / all.old).saturating_mul(tolerance));
    if bias == 0 {
        return all.old;
    }
    spread.saturating_mul(all.old) / spread.saturating_add(bias.saturating_mul(all.old))
}

/// Parts by which two mixes differ.
fn difference(one: &BTreeMap<WorkType, u64>, other: &BTreeMap<WorkType, u64>) -> u64 {
    let of = |mix: &BTreeMap<WorkType, u64>, work: &WorkType| mix.get(work).copied().unwrap_or(0);
    let both: BTreeSet<&WorkType> = one.keys().chain(other.keys()).collect();
    both.into_iter().map(|work| of(one, work).abs_diff(of(other, work))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of `count` equally frequent types, each `times` times, from type `first` on.
    fn work(first: u64, count: u64, times: u64) -> WorkMix {
        let mut mix = WorkMix::default();
        (first..first + count).for_each(|cpu| mix.add(WorkType::without_gpus(cpu, 0), times));
        mix
    }

    fn part(parts: &BTreeMap<WorkType, u64>, cpu_milli: u64) -> u64 {
        parts.get(&WorkType::without_gpus(cpu_milli, 0)).copied().unwrap_or(0)
    }

    #[test]
    fn a_history_counts_whole_while_what_comes_is_like_it() {
        assert_eq!(belief(&WorkMix::default(), &work(0, 10, 40)), 400);
        assert_eq!(belief(&work(0, 10, 1), &work(0, 10, 40)), 400);
        // Of ten types four came twice and two not at all: that is chance.
        let mut lately = work(0, 8, 1);
        (0..4).for_each(|cpu| lately.add(WorkType::without_gpus(cpu, 0), 1));
        assert_eq!(belief(&lately, &work(0, 10, 40)), 400);
    }

    #[test]
    fn a_foreign_history_fades_with_what_is_seen() {
        let foreign = work(100, 10, 800);
        let counts: Vec<u128> = [1, 2, 10, 100].map(|times| belief(&work(0, 10, times), &foreign)).to_vec();
        assert!(counts.is_sorted_by(|a, b| a >= b) && counts[0] < 200 && counts[3] < 10, "{counts:?}");
        let expected = Expected::of(&work(0, 10, 10), &foreign).parts;
        assert!(part(&expected, 0) > 90 && part(&expected, 100) <= 8, "{expected:?}");
    }

    #[test]
    fn gangs_that_the_history_did_not_tell_of_are_believed() {
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
        assert_eq!(belief(&mix(398, 2), &known), 8_040, "as many as were known of");
        assert_eq!(belief(&mix(99, 1), &known), 8_040, "one may be chance");
        assert!(belief(&mix(388, 12), &known) < 100, "six times as many are not");
    }

    #[test]
    fn a_thin_history_counts_as_what_it_is() {
        assert_eq!(belief(&work(0, 2, 300), &work(0, 2, 10)), 20);
        let expected = Expected::of(&work(0, 4, 75), &work(0, 2, 10));
        assert!((250..=256).contains(&part(&expected.parts, 3)), "{expected:?}");
        assert!((300..=320).contains(&expected.tasks), "{}", expected.tasks);
    }

    #[test]
    fn the_largest_counts_are_no_trouble() {
        let (one, other) = (work(0, 1, u64::MAX), work(1, 1, u64::MAX));
        assert_eq!(part(&Expected::of(&one, &one).parts, 0), 1_024);
        assert_eq!(part(&Expected::of(&one, &other).parts, 0), 1_024);
        assert_eq!(Expected::of(&WorkMix::default(), &WorkMix::default()), Expected::default());
    }

    #[test]
    fn twice_as_much_known_is_worth_looking_at_again() {
        let (few, more) =
            (Expected::of(&work(0, 4, 10), &WorkMix::default()), Expected::of(&work(0, 4, 20), &WorkMix::default()));
        assert_eq!(few.parts, more.parts);
        assert!(few.is_far_from(&more) && !few.is_far_from(&Expected::of(&work(0, 4, 11), &WorkMix::default())));
    }
}
