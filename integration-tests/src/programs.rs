//! Where the programs under test are.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

/// The path of one of the workspace's programs, beside the running test: `target/<profile>/NAME`.
pub fn program(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("where this test is")?;
    let profile = test.parent().and_then(|deps| deps.parent()).context("the test is not in target/<profile>/deps")?;
    let path = profile.join(name);
    ensure!(path.is_file(), "{} is not built: run ./test, or `cargo build --workspace --bins`", path.display());
    Ok(path)
}
