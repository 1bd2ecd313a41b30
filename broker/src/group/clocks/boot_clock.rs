//! Time since boot, which is independent of the wall clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Names the boot of a machine; from the kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Time since this machine started. Unlike `Instant`, it advances while the machine sleeps, and values of an earlier
/// process can be compared with it.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The boot that [`now`] counts from; `None` where the kernel does not say.
pub(crate) fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string(BOOT_ID).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}
