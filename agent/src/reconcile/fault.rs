//! A testing aid: `COMITY_AGENT_CRASH_AT=<step>[:before|after][,…]` aborts the process once at each named step, right
//! before or after (the default) its work, so that tests can show that a restart at that point loses nothing. A marker
//! file in the state directory prevents a second abort. Without the variable this module does nothing.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::reconcile::steps::Step;

/// The variable.
pub const CRASH_VARIABLE: &str = "COMITY_AGENT_CRASH_AT";

/// Held by the thread that ends the process.
static ENDING: Mutex<()> = Mutex::new(());

/// When a process ends, relative to a step's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashTime {
    /// Right before it.
    Before,
    /// Right after it.
    After,
}

/// Where a process can be made to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    step: String,
    time: CrashTime,
    marker: PathBuf,
}

/// The variable names no step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{CRASH_VARIABLE} is {value:?}: want one of {steps}, then nothing, ':before' or ':after'")]
pub struct CrashPointError {
    /// Its value.
    pub value: String,
    /// The valid steps.
    pub steps: String,
}

impl CrashPoint {
    /// The crash points that the environment names.
    ///
    /// # Errors
    /// [`CrashPointError`]: a test that names no step would show nothing.
    pub fn from_environment(state: &Path) -> Result<Vec<Self>, CrashPointError> {
        let value = std::env::var(CRASH_VARIABLE).unwrap_or_default();
        value.split(',').filter(|point| !point.is_empty()).map(|point| Self::parse(point, state)).collect()
    }

    fn parse(value: &str, state: &Path) -> Result<Self, CrashPointError> {
        let (step, when) = value.split_once(':').unwrap_or((value, "after"));
        let names = Step::names();
        let time = match when {
            "before" if names.contains(&step) => CrashTime::Before,
            "after" if names.contains(&step) => CrashTime::After,
            _ => return Err(CrashPointError { value: value.to_owned(), steps: names.join(", ") }),
        };
        let marker = state.join(format!("crashed-at-{step}-{when}"));
        Ok(Self { step: step.to_owned(), time, marker })
    }

    /// Ends the process if this is its crash point and it has not ended here before.
    pub fn reached(&self, step: &str, time: CrashTime) {
        if self.step != step || self.time != time {
            return;
        }
        // A process ends at one crash point: another that is reached meanwhile is not marked, and ends the next
        // process.
        let _ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
        if self.mark() {
            tracing::error!(step, ?time, "ending the process, as {CRASH_VARIABLE} demands");
            std::process::abort();
        }
    }

    /// Makes the marker; true if it did not exist.
    fn mark(&self) -> bool {
        std::fs::OpenOptions::new().write(true).create_new(true).open(&self.marker).is_ok()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_a_step_and_marks_once() {
        let home = tempfile::tempdir().unwrap();
        let point = CrashPoint::parse("send-psk:before", home.path()).unwrap();
        assert!(point.time == CrashTime::Before && point.step == "send-psk");
        assert_eq!(CrashPoint::parse("send-psk", home.path()).unwrap().time, CrashTime::After);
        assert!(point.mark() && !point.mark());
        point.reached("send-psk", CrashTime::After);
        point.reached("make-keys", CrashTime::Before);
        for wrong in ["", "nothing", "send-psk:later"] {
            assert!(CrashPoint::parse(wrong, home.path()).unwrap_err().to_string().contains("make-keys"), "{wrong}");
        }
    }
}
