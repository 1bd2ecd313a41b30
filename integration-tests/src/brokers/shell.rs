//! Runs system programs for setup and cleanup.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// Runs a program to its end; returns its output.
///
/// # Errors
/// When it fails, with its error output.
pub(super) fn run<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<String> {
    let output =
        Command::new(program).args(args).stdin(Stdio::null()).output().with_context(|| format!("run {program}"))?;
    let words: Vec<_> = args.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}: {}", words.join(" "), output.status, said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// As [`run`], for cleanup: prints a failure and continues.
pub(super) fn run_cleanup<S: AsRef<OsStr>>(program: &str, args: &[S]) {
    if let Err(error) = run(program, args) {
        eprintln!("left behind: {error:#}");
    }
}
