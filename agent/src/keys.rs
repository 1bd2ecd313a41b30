//! Keys that two agents exchange, and messages sealed with them.

pub mod bundle;
#[cfg(test)]
mod fuzz_messages;
pub mod seal;
