//! Finds and runs the workspace's programs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use comity_testkit::ControlPlane;
use tokio::process::Command;

/// Path of one of the workspace's programs, `target/<profile>/NAME`, found from the path of the running benchmark or
/// test.
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

/// The folder `deploy` with the released manifests.
#[must_use]
pub fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Applies the admission policies without which a donor lends nothing.
///
/// # Errors
/// With kubectl's reason.
pub async fn apply_admission(donor: &ControlPlane) -> Result<()> {
    let file = deploy().join("agent/admission.yaml");
    donor.kubectl(&["apply", "-f", file.to_str().context("paths of tests are text")?]).await?;
    Ok(())
}

/// Runs one of the workspace's programs to its end.
///
/// # Errors
/// When it fails, with its standard error.
pub(crate) async fn run(name: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program(name)?).args(args).output().await?;
    ensure!(output.status.success(), "{name} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A path as an argument of a program.
///
/// # Errors
/// When the path is not UTF-8.
pub(crate) fn utf8(path: &Path) -> Result<&str> {
    path.to_str().context("paths of tests are text")
}
