//! Parses bounded whole numbers on the command line.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A clap value parser for numbers in `range`; its error names the range.
pub(crate) fn whole<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.trim().parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("write a whole number from {} to {}", range.start(), range.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        let read = whole::<u8>(1..=100);
        assert_eq!(read("100"), Ok(100));
        for bad in ["0", "101", "-1", "", "many", "1.5", "300"] {
            assert_eq!(read(bad), Err("write a whole number from 1 to 100".to_owned()), "{bad}");
        }
    }
}
