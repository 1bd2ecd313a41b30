//! What the agent remembers over restarts: the records, and the store that keeps them on disk.

pub mod record;
pub mod store;
