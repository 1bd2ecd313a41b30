//! Exponential decay in integers, so that every replica computes the same value.

use crate::model::time::Millis;

/// The fixed-point value 1 of [`decay`].
pub(crate) const FIXED_ONE: u128 = 1 << 64;
/// Binary digits of precision for the fraction of a half-life.
const DIGITS: u32 = 40;
/// 2^64 × 2^(−1/2^k) for k from 1, rounded down.
const ROOTS: [u64; DIGITS as usize] = [
    0xb504f333f9de6484,
    0xd744fccad69d6af4,
    0xeac0c6e7dd24392e,
    0xf5257d152486cc2c,
    0xfa83b2db722a033a,
    0xfd3e0c0cf486c174,
    0xfe9e115c7b8f884b,
    0xff4ecb59511ec8a5,
    0xffa756521c8daed1,
    0xffd3a751c0f7e10b,
    0xffe9d2b2f7db2755,
    0xfff4e91bff1b8c3d,
    0xfffa747ea0040664,
    0xfffd3a3b7814eb53,
    0xfffe9d1cc60ddab1,
    0xffff4e8e25879bfa,
    0xffffa7470363f451,
    0xffffd3a37dda0313,
    0xffffe9d1bdf703ae,
    0xfffff4e8debe025e,
    0xfffffa746f4fa150,
    0xfffffd3a37a3f8b0,
    0xfffffe9d1bd1065a,
    0xffffff4e8de845ad,
    0xffffffa746f41376,
    0xffffffd3a37a05e3,
    0xffffffe9d1bd01fb,
    0xfffffff4e8de80c0,
    0xfffffffa746f4050,
    0xfffffffd3a37a024,
    0xfffffffe9d1bd011,
    0xffffffff4e8de808,
    0xffffffffa746f404,
    0xffffffffd3a37a02,
    0xffffffffe9d1bd01,
    0xfffffffff4e8de80,
    0xfffffffffa746f40,
    0xfffffffffd3a37a0,
    0xfffffffffe9d1bd0,
    0xffffffffff4e8de8,
];

/// 2^64 × 2^(−span / half-life) with an error below 2^-32 of that; [`FIXED_ONE`] for a zero span, 0 after 64
/// half-lives.
pub(crate) fn decay(span: Millis, half_life: Millis) -> u128 {
    let half_life = half_life.0.max(1);
    let (whole, rest) = (span.0 / half_life, span.0 % half_life);
    if whole >= 64 {
        return 0;
    }
    let digits = (u128::from(rest) << DIGITS) / u128::from(half_life);
    let mut factor = FIXED_ONE;
    for (place, root) in (0..).zip(ROOTS) {
        if digits >> (DIGITS - 1 - place) & 1 == 1 {
            factor = (factor * u128::from(root)) >> 64;
        }
    }
    factor >> whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_quarters_and_roots_are_exact() {
        let half_life = Millis::from_hours(24);
        assert_eq!(decay(Millis(0), half_life), FIXED_ONE);
        assert_eq!(decay(half_life, half_life), FIXED_ONE / 2);
        assert_eq!(decay(Millis::from_hours(72), half_life), FIXED_ONE / 8);
        assert_eq!(decay(Millis::from_hours(64 * 24), half_life), 0);
        let root = decay(Millis::from_hours(12), half_life);
        assert!(((root * root) >> 64).abs_diff(FIXED_ONE / 2) < 4, "√½ squared is ½");
        let part = decay(Millis(7_777_777), half_life);
        let rest = decay(Millis(half_life.0 - 7_777_777), half_life);
        assert!(((part * rest) >> 64).abs_diff(FIXED_ONE / 2) < FIXED_ONE >> 32, "parts of a half-life make one");
    }

    #[test]
    fn a_longer_time_never_leaves_more() {
        let half_life = Millis::from_hours(24);
        let mut last = FIXED_ONE;
        for span in (0..200_000_u64).map(|step| Millis(step * 997)) {
            let now = decay(span, half_life);
            assert!(now <= last, "{span:?}");
            last = now;
        }
        // Even one millisecond counts under the longest half-life, a year.
        assert!(decay(Millis(1), Millis::from_hours(24 * 366)) < FIXED_ONE);
    }
}
