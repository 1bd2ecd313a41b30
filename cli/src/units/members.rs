//! How many members a gang has.

/// Members: so many must start together, and so many more may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRange {
    /// Without them nothing starts.
    pub min: u32,
    /// At most so many start.
    pub desired: u32,
}

/// Reads `4` or `2-8`.
///
/// # Errors
/// One sentence with the value and what to write.
pub fn parse_members(text: &str) -> Result<MemberRange, String> {
    let text = text.trim();
    let fail =
        |why: &str| format!("{text:?} {why}; write how many members there are (4), or from how many to how many (2-8)");
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number > 0);
    let (min, desired) = text.split_once('-').unwrap_or((text, text));
    match (number(min), number(desired)) {
        (Some(min), Some(desired)) if min <= desired => Ok(MemberRange { min, desired }),
        (Some(_), Some(_)) => Err(fail("ends before it begins")),
        _ => Err(fail("is no number of members")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_or_two() {
        assert_eq!(parse_members("4"), Ok(MemberRange { min: 4, desired: 4 }));
        assert_eq!(parse_members("2-8"), Ok(MemberRange { min: 2, desired: 8 }));
        for (bad, word) in [("8-2", "ends before"), ("0", "no number"), ("-1", "no number"), ("a-b", "no number")] {
            let error = parse_members(bad).expect_err(bad);
            assert!(error.contains(word) && error.contains(bad) && error.contains("2-8"), "{error}");
        }
    }
}
