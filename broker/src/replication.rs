//! The data that brokers of one group replicate: log entries, members, proposals. Consensus, disk and transport build
//! on it; it depends on none of them.

pub(crate) mod command_codec;
pub(crate) mod entry_codec;
pub mod identity;
pub mod member;
pub mod membership_change;
pub mod proposal;
pub mod types;
