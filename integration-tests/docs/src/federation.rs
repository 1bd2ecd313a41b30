//! The federation of `comity dev` that the commands of a page use.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// The last line that `comity dev` prints once it runs begins so.
const READY: &str = "For real API servers, run:";

/// A running `comity dev`. It ends with this value.
#[derive(Debug)]
pub struct Federation {
    process: Child,
    folder: PathBuf,
    /// The lines that it printed until it was ready.
    pub printed: Vec<String>,
}

impl Federation {
    /// Starts the federation in a folder and waits until it is ready.
    ///
    /// # Errors
    /// If it fails to start.
    pub fn start(comity: &Path, folder: &Path) -> Result<Self> {
        let mut process = Command::new(comity)
            .args(["dev", "--state"])
            .arg(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", comity.display()))?;
        let mut output = BufReader::new(process.stdout.take().context("it has no output")?);
        let mut printed = Vec::new();
        loop {
            let mut line = String::new();
            if output.read_line(&mut line)? == 0 {
                let mut text = String::new();
                if let Some(mut errors) = process.stderr.take() {
                    errors.read_to_string(&mut text)?;
                }
                bail!("comity dev ended: {}\n{text}", printed.join("\n"));
            }
            printed.push(line.trim_end().to_owned());
            if line.starts_with(READY) {
                // Nobody reads on; it prints nothing more until it ends.
                std::mem::forget(output);
                return Ok(Self { process, folder: folder.to_owned(), printed });
            }
        }
    }

    /// Shell commands that make the shell use the federation as alice, as the federation itself prints them.
    #[must_use]
    pub fn exports(&self) -> String {
        let exports = self.printed.iter().map(|line| line.trim()).filter(|line| line.starts_with("export "));
        exports.collect::<Vec<_>>().join("\n")
    }

    /// The identity of a user.
    #[must_use]
    pub fn identity(&self, user: &str) -> PathBuf {
        self.folder.join("users").join(user)
    }
}

impl Drop for Federation {
    fn drop(&mut self) {
        _ = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
        _ = self.process.wait();
    }
}
