//! Compares placements across donors.

pub(crate) mod best;
pub(crate) mod gravity;
pub(crate) mod link;
pub(crate) mod promise;
pub(crate) mod score;
pub(crate) mod spread;
