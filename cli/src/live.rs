//! Output that follows changes: a screen that is repainted, or lines for a pipe.

mod changes;
mod screen;
mod watched_list;

pub(crate) use changes::{ChangeSource, Changes};
pub(crate) use screen::{Key, Screen};
pub use watched_list::WatchArgs;
