//! A process under test with a log file.

pub(crate) mod memory;
pub(crate) mod place;
pub(crate) mod usage;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::{Child, Command};

/// A process that is killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; standard output and error are appended to `log`.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let out =
            File::options().create(true).append(true).open(log).with_context(|| format!("log {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Its process id while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Kills it with SIGKILL and waits until it has ended.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.with_context(|| format!("kill {}", self.name))
    }

    /// Sends a signal such as "STOP" to a process id.
    ///
    /// # Errors
    /// When there is no such process.
    pub async fn signal(pid: u32, signal: &str) -> Result<()> {
        let status = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().await?;
        ensure!(status.success(), "kill -{signal} {pid}: {status}");
        Ok(())
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self, limit: Duration) -> Result<std::process::ExitStatus> {
        tokio::time::timeout(limit, self.child.wait())
            .await
            .with_context(|| format!("{} did not end within {limit:?}; its log ends\n{}", self.name, self.log_tail()))?
            .map_err(Into::into)
    }

    /// The end of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&text[text.len().saturating_sub(4_000)..]).into_owned()
    }
}
