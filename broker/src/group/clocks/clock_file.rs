//! Saves the log clock, and when the group was last led, across restarts of the process. A missing or damaged file is
//! ignored: a checksum tells, because a wrong time would void every certificate.
//!
//! ```text
//!   file = ClockFile in JSON, SHA-256 of that (32 bytes)
//! ```

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::group::clocks::boot_clock;
use crate::group::clocks::log_clock::LogClock;
use crate::group::clocks::member_clocks::Led;

/// Name of the file in the group's directory.
const NAME: &str = "clock";
/// Size limit of the file.
const MAX_CLOCK_FILE_BYTES: u64 = 4_096;

/// Contents of the file. Times are in milliseconds since boot, or of the log clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClockFile {
    boot_id: String,
    at_ms: u64,
    log_clock_ms: Option<u64>,
    led_at_ms: Option<u64>,
    led_log_clock_ms: Option<u64>,
}

/// Clocks restored at start.
#[derive(Debug, Default)]
pub(crate) struct Restored {
    pub(crate) clock: LogClock,
    pub(crate) led: Option<Led>,
}

impl ClockFile {
    /// The file to write at `now`.
    pub(crate) fn of(boot_id: &str, now: Duration, log_clock_ms: Option<u64>, led: Option<Led>) -> Self {
        let ago = led.zip(log_clock_ms).map(|(led, log_ms)| led.ago(now, log_ms));
        let led_log_clock_ms = match led {
            Some(Led::LogClock(ms)) => Some(ms),
            _ => ago.zip(log_clock_ms).map(|(ago, log_ms)| log_ms.saturating_sub(millis(ago))),
        };
        let led_at_ms = match led {
            Some(Led::Ago { .. }) => ago.and_then(|ago| now.checked_sub(ago)).map(millis),
            _ => None,
        };
        Self { boot_id: boot_id.to_owned(), at_ms: millis(now), log_clock_ms, led_at_ms, led_log_clock_ms }
    }

    /// Interprets the file on a machine at `now` since boot `boot_id`.
    pub(crate) fn restore(&self, boot_id: Option<&str>, now: Duration) -> Restored {
        let same_boot = boot_id == Some(&*self.boot_id) && self.at_ms <= millis(now);
        let mut clock = LogClock::default();
        if let Some(log_ms) = self.log_clock_ms.filter(|_| same_boot) {
            clock.start(Duration::from_millis(self.at_ms), log_ms);
        }
        let led_at = self.led_at_ms.filter(|_| same_boot).map(Duration::from_millis);
        let ago = led_at.map(|at| Led::Ago { ago: now.saturating_sub(at), as_of: now });
        Restored { clock, led: ago.or(self.led_log_clock_ms.map(Led::LogClock)) }
    }

    /// Reads the file in `dir`.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let bytes = comity_runtime::atomic_file::read_bounded(&dir.join(NAME), MAX_CLOCK_FILE_BYTES).ok()?;
        let found = checked(&bytes).and_then(Self::parse);
        if found.is_none() {
            tracing::warn!(
                "the file group/clock is damaged and ignored: log time goes on from the other brokers' clocks"
            );
        }
        found
    }

    fn parse(json: &[u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    /// Writes the file without fsync: the next boot ignores most of it anyway.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let temporary: PathBuf = dir.join(".clock.tmp");
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let json = serde_json::to_vec(self)?;
        file.write_all(&[&json[..], &Sha256::digest(&json)[..]].concat())?;
        fs::rename(temporary, dir.join(NAME))
    }
}

/// The JSON of a file whose checksum is right.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (json, checksum) = bytes.split_last_chunk::<32>()?;
    (Sha256::digest(json)[..] == checksum[..]).then_some(json)
}

/// Restores the clocks from the file in `dir`.
pub(crate) fn restore(dir: &Path) -> Restored {
    let boot_id = boot_clock::boot_id();
    ClockFile::read(dir).map(|file| file.restore(boot_id.as_deref(), boot_clock::now())).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn file() -> ClockFile {
        let led = Led::Ago { ago: SECOND * 3, as_of: SECOND * 100 };
        ClockFile::of("a", SECOND * 101, Some(1_000_000), Some(led))
    }

    #[test]
    fn within_one_boot_the_log_clock_goes_on_by_the_monotonic_clock() {
        let restored = file().restore(Some("a"), SECOND * 160);
        assert_eq!(restored.clock.now(SECOND * 160), Some(1_059_000));
        assert_eq!(restored.led.unwrap().ago(SECOND * 161, 0), SECOND * 64);
    }

    #[test]
    fn after_another_boot_only_the_log_clock_says_when_the_group_was_led() {
        for (boot, now) in [(Some("b"), SECOND * 160), (None, SECOND * 160), (Some("a"), SECOND * 50)] {
            let restored = file().restore(boot, now);
            assert_eq!(restored.clock, LogClock::default());
            assert_eq!(restored.led, Some(Led::LogClock(996_000)));
            assert_eq!(restored.led.unwrap().ago(now, 1_000_000), SECOND * 4);
        }
    }

    #[test]
    fn what_was_known_from_before_a_boot_is_kept() {
        let file = ClockFile::of("b", SECOND, Some(2_000_000), Some(Led::LogClock(996_000)));
        assert_eq!(file.restore(Some("b"), SECOND * 2).led, Some(Led::LogClock(996_000)));
    }

    #[test]
    fn clock_files() {
        let later = ClockFile::of("b", SECOND, None, Some(Led::LogClock(996_000)));
        let valid = [file(), later].map(|file| serde_json::to_vec(&file).unwrap()).to_vec();
        fuzz!("clock_file", valid, |bytes: &[u8]| {
            let Some(file) = ClockFile::parse(bytes) else { return false };
            for now in [Duration::ZERO, SECOND * 160, Duration::MAX] {
                let Restored { mut clock, led } = file.restore(Some("a"), now);
                let times = [now, now.saturating_add(SECOND)].map(|now| clock.now(now));
                assert!(times.is_sorted(), "the log clock runs backwards: {times:?}");
                clock.steer(now, i64::MIN);
                clock.follow(now, now, times[0].unwrap_or(u64::MAX));
                let log_ms = clock.now(now).expect("it was set just now");
                let written = ClockFile::of("a", now, Some(log_ms), led);
                let restored = written.restore(Some("a"), now);
                assert_eq!(restored.led.is_some(), led.is_some(), "whether the group was led is kept: {written:?}");
                let _ = restored.led.map(|led| led.ago(now, log_ms));
            }
            true
        });
    }

    #[test]
    fn a_file_that_is_damaged_is_as_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ClockFile::read(dir.path()), None);
        file().write(dir.path()).unwrap();
        assert_eq!(ClockFile::read(dir.path()), Some(file()));
        fs::write(dir.path().join(NAME), b"{\"boot_id\":").unwrap();
        assert_eq!(ClockFile::read(dir.path()), None);
        assert_eq!(restore(dir.path()).led, None);
    }

    /// Every bit counts: the time ten years ahead is as valid JSON as the true one.
    #[test]
    fn damaged_clock_file_moves_log_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        file().write(dir.path()).unwrap();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            assert_eq!(ClockFile::read(dir.path()), None, "byte {at}");
        }
        fs::write(&path, whole).unwrap();
        assert_eq!(ClockFile::read(dir.path()), Some(file()));
    }
}
