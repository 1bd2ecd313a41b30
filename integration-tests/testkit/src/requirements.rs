//! Skips a test, or fails it on CI, when the machine lacks its requirements.

/// Prints the missing requirements; returns whether the test can run.
///
/// A person on a laptop without root should be able to run the tests that can run. On a build machine, where
/// nobody reads what a passing test prints, a test that did not run must not pass.
///
/// # Panics
///
/// If anything is missing and `CI` is `true` or `1`.
#[must_use = "without its requirements the test cannot run"]
pub fn met(test: &str, missing: &[String]) -> bool {
    if missing.is_empty() {
        return true;
    }
    let list = missing.join("; ");
    assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1"), "{test} cannot run here: {list}");
    eprintln!("{test} DID NOT RUN, because this machine lacks: {list}");
    false
}
