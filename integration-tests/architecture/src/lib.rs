//! Which file of a crate imports which, and which names it uses twice, read from syntax; the tests say what is allowed.

mod cycles;
mod graph;
mod modules;
mod names;
mod paths;

pub use graph::Graph;
pub use names::{Duplicate, duplicates};
