//! Time since boot, for deadlines that must pass while the machine is suspended.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A time by CLOCK_BOOTTIME. `Instant` stands still while the machine is suspended, and no change of the wall clock
/// moves either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    /// The time now.
    #[must_use]
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default()))
    }

    /// Time since boot.
    #[must_use]
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// How much later it is than `earlier`; zero if it is not.
    #[must_use]
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_kernels_time_since_boot() {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
        let uptime: f64 = uptime.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap_or_default();
        let now = BootTime::now();
        assert!(now.since_boot().as_secs_f64() >= uptime - 0.01, "{now:?} {uptime}");
        assert_eq!((now + Duration::from_secs(3)).saturating_duration_since(now), Duration::from_secs(3));
        assert_eq!(now.saturating_duration_since(now + Duration::from_secs(3)), Duration::ZERO);
    }
}
