//! Keys that two agents exchange, and messages sealed with them; the anchor of the brokers' audit log.

pub(crate) mod audit_anchor;
pub mod bundle;
pub mod continuity;
#[cfg(test)]
mod fuzz_messages;
pub mod pins;
pub mod seal;
