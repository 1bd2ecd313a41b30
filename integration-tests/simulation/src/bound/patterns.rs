//! Patterns of GPU shares on one device, for the linear programme.

/// A device in thousandths.
const WHOLE: usize = 1_000;
/// Smaller shares are divisible: they fill the rest of a pattern.
pub(super) const LEAST: u16 = 100;

/// Number of shares of each size on one device, by index into the sizes.
pub(super) type Pattern = Vec<u8>;

/// Thousandths of the device that a pattern leaves free.
pub(super) fn left(pattern: &[u8], sizes: &[u16]) -> u16 {
    let used: u16 = pattern.iter().zip(sizes).map(|(&count, &size)| u16::from(count) * size).sum();
    1_000_u16.saturating_sub(used)
}

/// Initial patterns: an empty device for the divisible shares, and one full of each size.
pub(super) fn first(sizes: &[u16]) -> Vec<Pattern> {
    let full = |at: usize| {
        let mut pattern = vec![0; sizes.len()];
        pattern[at] = u8::try_from(1_000 / sizes[at]).unwrap_or(u8::MAX);
        pattern
    };
    std::iter::once(vec![0; sizes.len()]).chain((0..sizes.len()).map(full)).collect()
}

/// Solves the unbounded knapsack: the pattern of the highest value, and that value. `values` has the value of one share
/// of each size, `rest` that of each free thousandth.
pub(super) fn best(sizes: &[u16], values: &[f64], rest: f64) -> (f64, Pattern) {
    // By capacity: the highest value, and the size taken last (`None`: a thousandth stays free).
    let mut most = vec![0.0_f64; WHOLE + 1];
    let mut taken: Vec<Option<usize>> = vec![None; WHOLE + 1];
    for room in 1..=WHOLE {
        most[room] = most[room - 1] + rest;
        for (at, (&size, &value)) in sizes.iter().zip(values).enumerate() {
            let Some(before) = room.checked_sub(usize::from(size)) else { continue };
            if most[before] + value > most[room] {
                (most[room], taken[room]) = (most[before] + value, Some(at));
            }
        }
    }
    let mut pattern = vec![0; sizes.len()];
    let mut room = WHOLE;
    while room > 0 {
        match taken[room] {
            Some(at) => {
                pattern[at] += 1;
                room -= usize::from(sizes[at]);
            }
            None => room -= 1,
        }
    }
    (most[WHOLE], pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_pattern_is_that_of_a_knapsack() {
        let (value, pattern) = best(&[300, 400, 600], &[3.0, 5.0, 8.0], 0.0);
        assert_eq!((value, pattern), (13.0, vec![0, 1, 1]));
        let (value, pattern) = best(&[300, 400], &[3.0, 5.0], 0.0);
        assert_eq!((value, pattern.as_slice()), (11.0, &[2, 1][..]));
        // The free thousandths have a higher value than any share.
        let (value, pattern) = best(&[300], &[3.0], 0.02);
        assert!((value - 20.0).abs() < 1e-9 && pattern == [0], "{value} {pattern:?}");
    }

    #[test]
    fn a_pattern_and_its_rest_are_one_device() {
        let sizes = [300, 400];
        assert_eq!(left(&[2, 1], &sizes), 0);
        assert_eq!(first(&sizes), [vec![0, 0], vec![3, 0], vec![0, 2]]);
    }
}
