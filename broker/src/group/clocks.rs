//! Log time, and how a group keeps it right although its members' clocks differ.

mod boot_clock;
pub(crate) mod clock_exchange;
pub(crate) mod clock_file;
pub(crate) mod log_clock;
pub(crate) mod log_time;
pub(crate) mod member_clocks;
mod timekeeper;
