//! Keys that two agents exchange, and messages sealed with them.

pub mod bundle;
pub mod continuity;
pub mod pins;
pub mod seal;
