//! Amounts of GPUs: whole ones or equal shares.

use comity_policy::quantity::plain_milli;

const GPUS_REMEDY: &str = "give whole GPUs (3), a part of one (0.05 to 1), or several equal parts (4x0.25)";
const WHOLE_MILLI: u64 = 1_000;
/// 1/20 of a GPU, the API's smallest share.
const MIN_MILLI: u64 = 50;

/// An amount of GPUs: equal shares, each whole or a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuAmount {
    /// Number of shares.
    pub count: u32,
    /// Thousandths of a GPU per share; `None`: whole devices.
    pub milli: Option<u32>,
}

/// Parses `3`, `0.25`, `250m` or `4x0.25`.
///
/// # Errors
/// One sentence with the value and the remedy. `2.5` is an error, because it does not say how to split the shares.
pub fn parse_gpus(text: &str) -> Result<GpuAmount, String> {
    let text = text.trim();
    let fail = |why: &str| format!("{text:?} {why}; {GPUS_REMEDY}");
    let (times, each) = match text.split_once('x') {
        Some((times, each)) => (Some(times), each),
        None => (None, text),
    };
    let milli = plain_milli(each).ok_or_else(|| fail("is not an amount of GPUs"))?;
    let count = |number: u64| {
        u32::try_from(number).ok().filter(|n| *n > 0).ok_or_else(|| fail("is not a usable number of GPUs"))
    };
    let whole = milli % WHOLE_MILLI == 0;
    match times {
        None if whole => Ok(GpuAmount { count: count(milli / WHOLE_MILLI)?, milli: None }),
        None if milli > WHOLE_MILLI => {
            let (below, above) = (milli / WHOLE_MILLI, milli / WHOLE_MILLI + 1);
            Err(fail(&format!("is neither whole GPUs ({below} or {above}) nor a part of one")))
        }
        Some(times) if is_backwards(times, milli) => {
            Err(format!("{text:?} has the number last; for {each} shares of {times} write {each}x{times}"))
        }
        Some(_) if milli > WHOLE_MILLI => Err(fail("has shares of more than one GPU each")),
        _ if milli < MIN_MILLI => Err(fail("is less than 1/20 of a GPU")),
        _ => {
            let times =
                times.map_or(Some(1), |times| times.parse().ok()).ok_or_else(|| fail("is not an amount of GPUs"))?;
            let milli = u32::try_from(milli).ok().filter(|_| !whole);
            Ok(GpuAmount { count: count(times)?, milli })
        }
    }
}

/// Whether share and number are swapped, as in `0.25x4` for `4x0.25`.
fn is_backwards(times: &str, milli: u64) -> bool {
    milli >= WHOLE_MILLI
        && milli.is_multiple_of(WHOLE_MILLI)
        && plain_milli(times).is_some_and(|part| (MIN_MILLI..WHOLE_MILLI).contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_parts_and_several_parts() {
        for (text, count, milli) in [
            ("3", 3, None),
            ("3.0", 3, None),
            ("1", 1, None),
            ("0.25", 1, Some(250)),
            ("250m", 1, Some(250)),
            ("0.05", 1, Some(50)),
            ("4x0.25", 4, Some(250)),
            ("2x1", 2, None),
            ("1000m", 1, None),
        ] {
            assert_eq!(parse_gpus(text), Ok(GpuAmount { count, milli }), "{text}");
        }
    }

    #[test]
    fn two_and_a_half_is_an_error_with_a_remedy() {
        let error = parse_gpus("2.5").expect_err("2.5");
        assert_eq!(
            error,
            "\"2.5\" is neither whole GPUs (2 or 3) nor a part of one; give whole GPUs (3), a part of one (0.05 to 1), \
             or several equal parts (4x0.25)"
        );
    }

    #[test]
    fn a_swapped_share_and_number_are_explained() {
        for (text, instead) in [("0.25x4", "write 4x0.25"), ("250mx4", "write 4x250m"), ("0.5x1", "write 1x0.5")] {
            let error = parse_gpus(text).expect_err(text);
            assert!(error.ends_with(instead), "{error}");
            let instead = instead.trim_start_matches("write ");
            assert!(parse_gpus(instead).is_ok(), "the remedy helps: {instead}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in
            ["", "0", "-1", "0.0", "0.04", "0.2505", "x", "3x", "x3", "0x0.5", "2x1.5", "99999999999", "1e1", "NaN"]
        {
            let error = parse_gpus(bad).expect_err(bad);
            assert!(error.contains("4x0.25"), "{bad}: {error}");
        }
    }
}
