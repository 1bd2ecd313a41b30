//! The used part of one device.

use crate::mig::board::InstanceShape;
use crate::mig::slots::Slots;

/// Slots of used instances, and whether one of them has the media extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct InUse {
    /// The used slots.
    pub slots: Slots,
    /// Whether the media extension is taken.
    pub media: bool,
}

impl InUse {
    /// Whether another instance of `shape` fits at `start`.
    #[must_use]
    pub fn fits(self, shape: &InstanceShape, start: u8) -> bool {
        !(shape.media && self.media) && shape.at(start).is_some_and(|span| !span.overlaps(self.slots))
    }

    /// Slots where another instance of `shape` may start, in the shape's order.
    pub fn starts(self, shape: &'static InstanceShape) -> impl Iterator<Item = u8> {
        shape.starts.iter().copied().filter(move |&start| self.fits(shape, start))
    }

    /// How many more instances of `shape` fit. Instances of one shape never obstruct one another, except by the media
    /// extension.
    #[must_use]
    pub fn room(self, shape: &'static InstanceShape) -> u32 {
        let starts = u32::try_from(self.starts(shape).count()).unwrap_or(u32::MAX);
        if shape.media { starts.min(1) } else { starts }
    }

    /// This state plus an instance of `shape` at `start`.
    #[must_use]
    pub fn with(self, shape: &InstanceShape, start: u8) -> Self {
        Self { slots: self.slots.with(Slots::span(start, shape.size)), media: self.media || shape.media }
    }
}
