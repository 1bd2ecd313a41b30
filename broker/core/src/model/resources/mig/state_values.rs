//! The value of MIG devices by state.

use std::collections::{BTreeMap, BTreeSet};

use comity_types::mig::{Board, InUse, MAX_SHAPES};

/// Frequency of each shape, in parts of 1,024 that add up to 1,024.
pub type Weights = [u16; MAX_SHAPES];

/// The sum of all weights.
const WEIGHT_TOTAL: u128 = 1_024;
/// Largest number of instances per device.
const MOST_INSTANCES: u32 = 7;
/// A multiple of every number up to [`MOST_INSTANCES`].
const COMMON_MULTIPLE: u128 = 420;
/// States to cache: all states of both geometries for a dozen work mixes.
const MAX_CACHED_STATES: usize = 8_192;

/// Computes and caches the value of device states under the expected work.
///
/// The value of a state is the expected number of memory slots that arriving instances fill before the first one does
/// not fit. Instances arrive one by one with shapes drawn by weight, and are placed with perfect hindsight. The
/// scheduler places an instance where the remaining value is highest. Every shape has some weight, so the scheduler
/// never prefers a position that is strictly worse for future instances than another.
#[derive(Clone, Debug, Default)]
pub struct StateValues {
    known: BTreeMap<(Board, Weights, InUse), u128>,
}

impl StateValues {
    /// The value of one slot that will certainly be filled.
    pub const SLOT: u128 = WEIGHT_TOTAL.pow(MOST_INSTANCES) * COMMON_MULTIPLE;

    /// Weights for the recent `counts` of each shape.
    #[must_use]
    pub fn weights(board: Board, counts: &[u64; MAX_SHAPES]) -> Weights {
        let counts: Vec<u128> = counts.iter().take(board.shapes().len()).map(|&count| u128::from(count)).collect();
        let all: u128 = counts.iter().sum();
        let mut weights = [0; MAX_SHAPES];
        for (weight, count) in weights.iter_mut().zip(&counts) {
            *weight = u16::try_from((count * WEIGHT_TOTAL).checked_div(all).unwrap_or(0).max(1)).unwrap_or(u16::MAX);
        }
        // The most frequent shape absorbs the rounding error. Without any counts, all shapes get equal weights.
        if all == 0 {
            let shapes = u128::try_from(counts.len()).unwrap_or(1).max(1);
            weights
                .iter_mut()
                .take(counts.len())
                .for_each(|weight| *weight = u16::try_from(WEIGHT_TOTAL / shapes).unwrap_or(1));
        }
        let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
        if let Some(most) = weights.iter_mut().max() {
            *most = u16::try_from((u128::from(*most) + WEIGHT_TOTAL).saturating_sub(sum)).unwrap_or(u16::MAX);
        }
        weights
    }

    /// The value of a device in this state; [`Self::SLOT`] is the unit.
    pub fn of(&mut self, board: Board, weights: &Weights, in_use: InUse) -> u128 {
        let key = (board, *weights, in_use);
        if let Some(value) = self.known.get(&key) {
            return *value;
        }
        if self.known.len() >= MAX_CACHED_STATES {
            self.known.clear();
        }
        let value = value(board, weights, in_use);
        self.known.insert(key, value);
        value
    }
}

/// Sums over every combination that fits: the probability that it arrives in any order, times the slots that its last
/// arrival fills, averaged over the orders.
fn value(board: Board, weights: &Weights, in_use: InUse) -> u128 {
    let mut fits = BTreeSet::new();
    gather(board, in_use, 0, 0, [0; MAX_SHAPES], &mut fits);
    let mut value = 0;
    for placed in &fits {
        let (mut many, mut slots, mut ways) = (0_u32, 0, 1_u128);
        for ((shape, &count), &weight) in board.shapes().iter().zip(placed).zip(weights) {
            for of_this in 1..=count {
                many += 1;
                slots += u128::from(shape.size);
                // Number of orders so far: a multinomial coefficient at every step, so the division is exact.
                ways = ways * u128::from(many) / u128::from(of_this);
            }
            ways *= u128::from(weight).pow(u32::from(count));
        }
        if let Some(last) = (COMMON_MULTIPLE * slots).checked_div(u128::from(many)) {
            value += ways * WEIGHT_TOTAL.pow(MOST_INSTANCES.saturating_sub(many)) * last;
        }
    }
    value
}

/// Collects the combinations that fit, from start `first_start` of shape `first_shape` on.
fn gather(
    board: Board,
    in_use: InUse,
    first_shape: usize,
    first_start: usize,
    placed: [u8; MAX_SHAPES],
    all: &mut BTreeSet<[u8; MAX_SHAPES]>,
) {
    all.insert(placed);
    for (at, shape) in board.shapes().iter().enumerate().skip(first_shape) {
        let first = if at == first_shape { first_start } else { 0 };
        for (number, &start) in shape.starts.iter().enumerate().skip(first) {
            if in_use.fits(shape, start) {
                let mut more = placed;
                more[at] += 1;
                gather(board, in_use.with(shape, start), at, number + 1, more, all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use comity_types::mig::Slots;

    use super::super::states;
    use super::*;

    fn boards() -> [Board; 2] {
        [Board::of("NVIDIA-A100-SXM4-40GB", 40_960).unwrap(), Board::of("NVIDIA-A30", 24_576).unwrap()]
    }

    #[test]
    fn weights_add_up_and_are_positive() {
        let [eight, four] = boards();
        for counts in [[0; MAX_SHAPES], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, u64::MAX, 1], [5, 0, 0, 3, 0, 0, 0]] {
            for (board, shapes) in [(eight, 7), (four, 5)] {
                let weights = StateValues::weights(board, &counts);
                assert_eq!(weights.iter().map(|&weight| u128::from(weight)).sum::<u128>(), WEIGHT_TOTAL, "{counts:?}");
                assert!(weights[..shapes].iter().all(|&weight| weight > 0), "{weights:?}");
                assert!(weights[shapes..].iter().all(|&weight| weight == 0), "{weights:?}");
            }
        }
    }

    #[test]
    fn value_is_the_expected_number_of_filled_slots() {
        let [eight, _] = boards();
        // Nearly all weight is on 1g, with 1/1,024 on each other shape: nearly seven instances fit.
        let weights = StateValues::weights(eight, &[0, 0, 0, 0, 0, 1, 0]);
        let value = |in_use| StateValues::default().of(eight, &weights, in_use);
        let idle = value(InUse::default());
        assert!(idle > 6 * StateValues::SLOT && idle < 7 * StateValues::SLOT, "{}", idle / (StateValues::SLOT / 1_000));
        // A device with a used first half fits three, and a device with only the last slot free fits none.
        let half = value(InUse { slots: Slots::span(0, 4), media: false });
        assert!(half > 2 * StateValues::SLOT && half < 3 * StateValues::SLOT, "{}", half / (StateValues::SLOT / 1_000));
        assert_eq!(value(InUse { slots: Slots::span(0, 7), media: false }), 0);
    }

    /// For every state and shape, compares the combinations that fit after the chosen position with those after every
    /// other position.
    #[test]
    fn no_dominated_position_is_chosen() {
        for board in boards() {
            for counts in [[0; MAX_SHAPES], [0, 0, 0, 9, 0, 1, 0], [1, 0, 0, 0, 0, 90, 9]] {
                let (weights, mut value) = (StateValues::weights(board, &counts), StateValues::default());
                for state in states(board) {
                    for shape in board.shapes() {
                        let places: Vec<InUse> = state.starts(shape).map(|start| state.with(shape, start)).collect();
                        let after = |in_use| {
                            let mut all = BTreeSet::new();
                            gather(board, in_use, 0, 0, [0; MAX_SHAPES], &mut all);
                            all
                        };
                        let Some(best) = places.iter().max_by_key(|place| value.of(board, &weights, **place)) else {
                            continue;
                        };
                        let best = after(*best);
                        for other in places {
                            let other = after(other);
                            assert!(other == best || !other.is_superset(&best), "{shape:?} on {state:?}");
                        }
                    }
                }
            }
        }
    }
}
