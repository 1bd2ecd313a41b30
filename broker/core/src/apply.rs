//! Commands, and the one function that changes the state.

pub mod command;
pub mod entry;
pub(crate) mod transition;
