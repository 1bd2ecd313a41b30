//! A set of memory slots of one device.

use serde::{Deserialize, Serialize};

/// Memory slots, one bit each; slot 0 is the lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slots(u8);

impl Slots {
    /// No slot.
    pub const NONE: Self = Self(0);

    /// `size` slots from `start` on, without those beyond the eighth.
    #[must_use]
    pub fn span(start: u8, size: u8) -> Self {
        let from = |slot: u8| 0xff_u8.checked_shl(u32::from(slot)).unwrap_or(0);
        Self(from(start) & !from(start.saturating_add(size)))
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// Number of slots.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether the sets intersect.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Union of both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set without the slots of `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// First slots of instances of `size` slots that together fill exactly this set; `None` if impossible.
    #[must_use]
    pub fn starts(self, size: u8) -> Option<Vec<u8>> {
        let (mut left, mut starts) = (self, Vec::new());
        while !left.is_empty() {
            let start = u8::try_from(left.0.trailing_zeros()).ok()?;
            let span = Self::span(start, size);
            if size == 0 || span.count() != u32::from(size) || left.with(span) != left {
                return None;
            }
            left = left.without(span);
            starts.push(start);
        }
        Some(starts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_end_with_the_device() {
        assert_eq!((Slots::span(0, 8).count(), Slots::span(4, 4).count(), Slots::span(7, 4).count()), (8, 4, 1));
        assert!(Slots::span(9, 1).is_empty() && Slots::span(3, 0).is_empty());
        assert!(Slots::span(0, 4).overlaps(Slots::span(3, 1)) && !Slots::span(0, 4).overlaps(Slots::span(4, 4)));
    }

    #[test]
    fn starts_are_read_back() {
        let three = Slots::span(0, 2).with(Slots::span(2, 2)).with(Slots::span(6, 2));
        assert_eq!(three.starts(2), Some(vec![0, 2, 6]));
        assert_eq!(three.starts(4), None, "slots 6 and 7 are not four");
        assert_eq!(Slots::span(0, 3).starts(2), None);
        assert_eq!(Slots::span(0, 3).starts(0), None);
        assert_eq!(Slots::NONE.starts(1), Some(vec![]));
    }
}
