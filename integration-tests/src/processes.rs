//! What the kernel says of a process.

use anyhow::{Context as _, Result};

/// A line of /proc/PID/status, in bytes.
///
/// # Errors
/// When there is no such process or line.
pub fn memory(pid: u32, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).context("no such line")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::memory;

    #[test]
    fn memory_is_read() {
        let pid = std::process::id();
        assert!(memory(pid, "VmRSS").unwrap() > 1 << 20);
        assert!(memory(pid, "VmHWM").unwrap() >= memory(pid, "VmRSS").unwrap() / 2);
        assert!(memory(pid, "NoSuch").is_err());
    }
}
