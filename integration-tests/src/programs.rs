//! Where the programs under test are, and what ships with them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// The path of one of the workspace's programs: `target/<profile>/NAME`, beside the running benchmark, or above the
/// running test.
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

/// The folder of what ships.
#[must_use]
pub fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}
