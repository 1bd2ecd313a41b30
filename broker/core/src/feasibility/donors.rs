//! Placements compared across donors.

pub(crate) mod gravity;
pub(crate) mod score;
pub(crate) mod spread;
