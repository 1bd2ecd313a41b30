//! The number of members of a gang.

/// Members of a gang: at least `min` start together, at most `desired` in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRange {
    /// Members that must start together.
    pub min: u32,
    /// Upper bound; at least `min`.
    pub desired: u32,
}

/// Parses `4` or `2-8`.
///
/// # Errors
/// One sentence with the value and the remedy.
pub fn parse_members(text: &str) -> Result<MemberRange, String> {
    let text = text.trim();
    let fail = |why: &str| format!("{text:?} {why}; write the number of members (4) or a range (2-8)");
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number > 0);
    let (min, desired) = text.split_once('-').unwrap_or((text, text));
    match (number(min), number(desired)) {
        (Some(min), Some(desired)) if min <= desired => Ok(MemberRange { min, desired }),
        (Some(_), Some(_)) => Err(fail("has its bounds swapped")),
        _ => Err(fail("is not a number of members")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_or_two() {
        assert_eq!(parse_members("4"), Ok(MemberRange { min: 4, desired: 4 }));
        assert_eq!(parse_members("2-8"), Ok(MemberRange { min: 2, desired: 8 }));
        for (bad, word) in [("8-2", "swapped"), ("0", "not a number"), ("-1", "not a number"), ("a-b", "not a number")]
        {
            let error = parse_members(bad).expect_err(bad);
            assert!(error.contains(word) && error.contains(bad) && error.contains("2-8"), "{error}");
        }
    }
}
