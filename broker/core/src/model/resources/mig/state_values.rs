//! What a device in some state is still good for.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::mig::board::{Board, MAX_SHAPES};
use crate::model::mig::in_use::InUse;

/// How often work of each shape is asked for, in parts of 1,024 that add up to that.
pub type Weights = [u16; MAX_SHAPES];

/// Parts that weights add up to.
const PARTS: u128 = 1_024;
/// Most instances that a device holds.
const MOST: u32 = 7;
/// A number that all up to [`MOST`] divide.
const DIVISIBLE: u128 = 420;
/// States that are remembered: all of both geometries under a dozen mixes.
const MAX_KNOWN: usize = 8_192;

/// What devices are worth under the work that is expected, and remembers it.
///
/// The worth of a state is the number of memory slots that work which arrives one by one, of shapes drawn by weight, is
/// expected to fill before one arrival does not fit, placed as well as hindsight allows. A place for an instance is as
/// good as the worth that is left, so it is chosen to lose least. Every shape has some weight: of two places, one of
/// which is good for all that the other is good for and for more, the other is never chosen.
#[derive(Clone, Debug, Default)]
pub struct StateValues {
    known: BTreeMap<(Board, Weights, InUse), u128>,
}

impl StateValues {
    /// What one slot that is sure to be filled is worth.
    pub const SLOT: u128 = PARTS.pow(MOST) * DIVISIBLE;

    /// Weights for `counts` of shapes asked for lately.
    #[must_use]
    pub fn weights(board: Board, counts: &[u64; MAX_SHAPES]) -> Weights {
        let counts: Vec<u128> = counts.iter().take(board.shapes().len()).map(|&count| u128::from(count)).collect();
        let all: u128 = counts.iter().sum();
        let mut weights = [0; MAX_SHAPES];
        for (weight, count) in weights.iter_mut().zip(&counts) {
            *weight = u16::try_from((count * PARTS).checked_div(all).unwrap_or(0).max(1)).unwrap_or(u16::MAX);
        }
        // What rounding left over, or took, is the most frequent one's; where nothing is known all are alike.
        if all == 0 {
            let shapes = u128::try_from(counts.len()).unwrap_or(1).max(1);
            weights
                .iter_mut()
                .take(counts.len())
                .for_each(|weight| *weight = u16::try_from(PARTS / shapes).unwrap_or(1));
        }
        let sum: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
        if let Some(most) = weights.iter_mut().max() {
            *most = u16::try_from((u128::from(*most) + PARTS).saturating_sub(sum)).unwrap_or(u16::MAX);
        }
        weights
    }

    /// What a device in this state is worth; [`Self::SLOT`] is the unit.
    pub fn of(&mut self, board: Board, weights: &Weights, in_use: InUse) -> u128 {
        let key = (board, *weights, in_use);
        if let Some(value) = self.known.get(&key) {
            return *value;
        }
        if self.known.len() >= MAX_KNOWN {
            self.known.clear();
        }
        let value = value(board, weights, in_use);
        self.known.insert(key, value);
        value
    }
}

/// Sums over everything that fits together: how likely it is to arrive, in whatever order, and how many slots its last
/// arrival fills, on average over the orders.
fn value(board: Board, weights: &Weights, in_use: InUse) -> u128 {
    let mut fits = BTreeSet::new();
    gather(board, in_use, (0, 0), [0; MAX_SHAPES], &mut fits);
    let mut value = 0;
    for placed in &fits {
        let (mut many, mut slots, mut ways) = (0_u32, 0, 1_u128);
        for ((shape, &count), &weight) in board.shapes().iter().zip(placed).zip(weights) {
            for of_this in 1..=count {
                many += 1;
                slots += u128::from(shape.size);
                // Orders of what is counted so far: a multinomial coefficient at every step, so nothing remains.
                ways = ways * u128::from(many) / u128::from(of_this);
            }
            ways *= u128::from(weight).pow(u32::from(count));
        }
        if let Some(last) = (DIVISIBLE * slots).checked_div(u128::from(many)) {
            value += ways * PARTS.pow(MOST.saturating_sub(many)) * last;
        }
    }
    value
}

/// All that can be placed from shape and start number `from` on, by shape.
fn gather(
    board: Board,
    in_use: InUse,
    from: (usize, usize),
    placed: [u8; MAX_SHAPES],
    all: &mut BTreeSet<[u8; MAX_SHAPES]>,
) {
    all.insert(placed);
    for (at, shape) in board.shapes().iter().enumerate().skip(from.0) {
        let first = if at == from.0 { from.1 } else { 0 };
        for (number, &start) in shape.starts.iter().enumerate().skip(first) {
            if in_use.fits(shape, start) {
                let mut more = placed;
                more[at] += 1;
                gather(board, in_use.with(shape, start), (at, number + 1), more, all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::slots::Slots;
    use super::super::states;
    use super::*;

    fn boards() -> [Board; 2] {
        [Board::of("NVIDIA-A100-SXM4-40GB", 40_960).unwrap(), Board::of("NVIDIA-A30", 24_576).unwrap()]
    }

    #[test]
    fn weights_add_up_and_none_is_nothing() {
        let [eight, four] = boards();
        for counts in [[0; MAX_SHAPES], [1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, u64::MAX, 1], [5, 0, 0, 3, 0, 0, 0]] {
            for (board, shapes) in [(eight, 7), (four, 5)] {
                let weights = StateValues::weights(board, &counts);
                assert_eq!(weights.iter().map(|&weight| u128::from(weight)).sum::<u128>(), PARTS, "{counts:?}");
                assert!(weights[..shapes].iter().all(|&weight| weight > 0), "{weights:?}");
                assert!(weights[shapes..].iter().all(|&weight| weight == 0), "{weights:?}");
            }
        }
    }

    #[test]
    fn worth_is_what_arrivals_are_expected_to_fill() {
        let [eight, _] = boards();
        // Only 1g is asked for, but for one part in 1,024 of each other shape: nearly seven of them fit.
        let weights = StateValues::weights(eight, &[0, 0, 0, 0, 0, 1, 0]);
        let value = |in_use| StateValues::default().of(eight, &weights, in_use);
        let idle = value(InUse::default());
        assert!(idle > 6 * StateValues::SLOT && idle < 7 * StateValues::SLOT, "{}", idle / (StateValues::SLOT / 1_000));
        // A device whose first half is taken holds three, and one with the last slot alone none of anything.
        let half = value(InUse { slots: Slots::span(0, 4), media: false });
        assert!(half > 2 * StateValues::SLOT && half < 3 * StateValues::SLOT, "{}", half / (StateValues::SLOT / 1_000));
        assert_eq!(value(InUse { slots: Slots::span(0, 7), media: false }), 0);
    }

    /// For every state and shape: all that fits after the place that is chosen, compared with all that fits after
    /// another.
    #[test]
    fn no_place_is_chosen_over_one_that_is_good_for_all_of_it_and_for_more() {
        for board in boards() {
            for counts in [[0; MAX_SHAPES], [0, 0, 0, 9, 0, 1, 0], [1, 0, 0, 0, 0, 90, 9]] {
                let (weights, mut value) = (StateValues::weights(board, &counts), StateValues::default());
                for state in states(board) {
                    for shape in board.shapes() {
                        let places: Vec<InUse> = state.starts(shape).map(|start| state.with(shape, start)).collect();
                        let after = |in_use| {
                            let mut all = BTreeSet::new();
                            gather(board, in_use, (0, 0), [0; MAX_SHAPES], &mut all);
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
