//! Where the programs under test are.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

/// The path of one of the workspace's programs: `target/<profile>/NAME`, beside the running benchmark, or above the running test.
pub fn program(name: &str) -> Result<PathBuf> {
    let running = std::env::current_exe().context("where this program is")?;
    let folder = running.parent().context("this program is in no folder")?;
    let profile = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    let path = profile.join(name);
    ensure!(
        path.is_file(),
        "{} is not built: run ./test, or `cargo build --workspace --bins`, with --release beside a release build",
        path.display()
    );
    Ok(path)
}
