//! Collections that the standard library lacks.

pub mod cow_map;
pub(crate) mod int_map;
pub(crate) mod interner;
