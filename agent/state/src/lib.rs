//! The agent's persistent state: the records, the store that keeps them on disk, and a copy of both elsewhere.
//!
//! Readers get a snapshot in memory; a change is published once it is on disk, so that plans are made from exactly what
//! a restart would read. Secrets are wiped from memory and never printed.

pub mod record;
pub mod state_copy;
pub mod store;
