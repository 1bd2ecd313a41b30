//! Memory and processor time of a process, from /proc.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// Clock ticks per second in /proc: `USER_HZ`, 100 on Linux.
const TICKS_PER_SECOND: u64 = 100;

/// The field `name` of /proc/PID/status, such as `VmRSS`, in bytes.
///
/// # Errors
/// When there is no such process or line.
pub fn memory(pid: u32, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).context("no such line")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

/// User and system time of a process so far.
///
/// # Errors
/// When there is no such process.
pub fn processor_time(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the name in brackets, which may hold anything.
    let (_, fields) = stat.rsplit_once(") ").context("a name in brackets")?;
    let mut ticks = fields.split_ascii_whitespace().skip(11).map(str::parse::<u64>);
    let (user, kernel) = (ticks.next().context("utime")??, ticks.next().context("stime")??);
    Ok(Duration::from_millis((user + kernel) * 1_000 / TICKS_PER_SECOND))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::{Duration, Instant};

    use super::{memory, processor_time};

    #[test]
    fn memory_is_read() {
        let pid = std::process::id();
        assert!(memory(pid, "VmRSS").unwrap() > 1 << 20);
        assert!(memory(pid, "VmHWM").unwrap() >= memory(pid, "VmRSS").unwrap() / 2);
        assert!(memory(pid, "NoSuch").is_err());
    }

    #[test]
    fn processor_time_grows_with_work() {
        let (pid, began) = (std::process::id(), Instant::now());
        let before = processor_time(pid).unwrap();
        while processor_time(pid).unwrap() < before + Duration::from_millis(50) {
            assert!(began.elapsed() < Duration::from_secs(60), "a minute of work is no processor time");
        }
        assert!(processor_time(u32::MAX).is_err());
    }
}
