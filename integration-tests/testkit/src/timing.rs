//! Tests of behaviour in time, which hold only while the machine keeps up.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Attempts of a test of behaviour in time.
const ATTEMPTS: u32 = 3;

/// Runs a test that asserts durations or the absence of events, and repeats it twice if it fails: other work on the machine
/// may have delayed it. A defect fails every attempt. Each failed attempt prints its panic.
///
/// # Panics
///
/// As the last attempt.
pub fn in_time(test: impl Fn()) {
    for attempt in 1..=ATTEMPTS {
        match catch_unwind(AssertUnwindSafe(&test)) {
            Ok(()) => return,
            Err(panic) if attempt == ATTEMPTS => resume_unwind(panic),
            Err(_) => eprintln!("attempt {attempt} of {ATTEMPTS} failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn attempts_of(fails: u32) -> (u32, bool) {
        let made = Cell::new(0);
        let passed = catch_unwind(AssertUnwindSafe(|| {
            in_time(|| {
                made.set(made.get() + 1);
                assert!(made.get() > fails, "too slow");
            });
        }));
        (made.get(), passed.is_ok())
    }

    #[test]
    fn a_delayed_run_is_repeated_and_a_defect_fails() {
        assert_eq!(attempts_of(0), (1, true));
        assert_eq!(attempts_of(2), (3, true));
        assert_eq!(attempts_of(3), (3, false));
    }
}
