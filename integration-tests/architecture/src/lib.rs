//! Which file of a crate imports which, and which names it uses twice, read from syntax; and the packages that are
//! shipped. The tests say what is allowed.

mod bill_of_materials;
mod cycles;
mod graph;
mod modules;
mod names;
mod paths;

pub use bill_of_materials::{bill_of_materials, checksums};
pub use graph::Graph;
pub use names::{Duplicate, duplicates};
