//! Parses seeds on the command line.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// Maximum number of seeds per run.
const MAX_SEEDS: u64 = 1_000;

/// One seed such as `42`, or several such as `42..51`, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(RangeInclusive<u64>);

/// Why a text is not a valid range of seeds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeedsError {
    /// Neither a number nor two numbers joined by `..`.
    #[error("{0:?} is no seed; write a number such as 42, or a range such as 42..51")]
    Unreadable(String),
    /// The last seed is below the first.
    #[error("the range {first}..{last} is reversed; write {last}..{first}")]
    Reversed {
        /// The first seed.
        first: u64,
        /// The last seed.
        last: u64,
    },
    /// The range is too long.
    #[error("{0} seeds are too many; use at most {MAX_SEEDS}")]
    TooMany(u64),
}

impl FromStr for Seeds {
    type Err = SeedsError;

    fn from_str(text: &str) -> Result<Self, SeedsError> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| text.parse::<u64>().map_err(|_| SeedsError::Unreadable(text.to_owned()));
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(SeedsError::Reversed { first, last });
        }
        if last - first >= MAX_SEEDS {
            return Err(SeedsError::TooMany((last - first).saturating_add(1)));
        }
        Ok(Self(first..=last))
    }
}

impl Seeds {
    /// All seeds, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + use<> {
        self.0.clone()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_run() {
        assert_eq!("42..51".parse::<Seeds>().unwrap().iter().collect::<Vec<_>>(), (42..=51).collect::<Vec<_>>());
        assert_eq!("7".parse::<Seeds>().unwrap().iter().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn an_invalid_range_is_refused_with_a_remedy() {
        assert_eq!("51..42".parse::<Seeds>(), Err(SeedsError::Reversed { first: 51, last: 42 }));
        assert_eq!("0..1000".parse::<Seeds>(), Err(SeedsError::TooMany(1_001)));
        for text in ["", "..", "4..", "a..b", "-1", "1..2..3"] {
            assert!(matches!(text.parse::<Seeds>(), Err(SeedsError::Unreadable(_))), "{text}");
        }
    }
}
