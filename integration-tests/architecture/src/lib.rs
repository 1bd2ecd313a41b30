//! Which file of a crate imports which, read from syntax; the tests say which imports are allowed.

mod cycles;
mod graph;
mod modules;
mod paths;

pub use graph::Graph;
