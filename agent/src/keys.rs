//! Keys that two agents exchange, and messages sealed with them.

pub mod bundle;
pub mod continuity;
#[cfg(test)]
mod fuzz_messages;
pub mod pins;
pub mod seal;
