//! Group membership: voters and learners, and how brokers join, return and leave.

pub(crate) mod admission;
pub(crate) mod client_addresses;
pub(crate) mod founding;
pub(crate) mod hello;
mod membership;

use std::time::Duration;

/// Timeout of a member's answer to a hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
