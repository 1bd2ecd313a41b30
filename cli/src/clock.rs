//! The wall clock, for ages and start times.

use comity_runtime::{Clock as _, SystemClock};

/// Now, in milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    SystemClock::new().unix_ms()
}
