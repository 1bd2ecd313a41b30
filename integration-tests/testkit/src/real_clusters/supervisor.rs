//! Runs the script `real-clusters`: starts and stops clusters, and removes leftovers of killed runs.

use std::fs;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};

use super::{CLUSTERS_SCRIPT, RealClustersError};
use crate::daemon::{last_lines, spawn};

/// Timeout of the teardown; 0.3 to 4 s is usual.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(40);

/// Polling interval of its log during the start.
const SUPERVISOR_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The script that made the clusters and waits for its standard input to close.
#[derive(Debug)]
pub(super) struct Supervisor {
    pub(super) dir: PathBuf,
    child: Child,
    /// Kept open while the clusters should run.
    lifeline: Option<ChildStdin>,
    /// Kept open for the error message, because the teardown removes the file.
    log: fs::File,
}

impl Supervisor {
    pub(super) async fn start(dir: &Path, patience: Duration) -> Result<Self, RealClustersError> {
        let began = Instant::now();
        let script = dir.join("real-clusters");
        let log_path = dir.join("run.log");
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| RealClustersError::Io { path, source }
        };
        let log = fs::File::options().create(true).read(true).append(true).open(&log_path).map_err(io(&log_path))?;
        let mut command = Command::new("bash");
        command.arg(&script).arg("run").arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(log.try_clone().map_err(io(&log_path))?);
        // A process group of its own: Ctrl-C at a terminal must not end the cleanup.
        command.process_group(0);
        let mut child = spawn(command).map_err(io(&script))?;
        let lifeline = child.stdin.take();
        let said = child.stdout.take();
        let mut supervisor = Self { dir: dir.to_owned(), child, lifeline, log };
        let mut line = String::new();
        if let Some(said) = said {
            let said = tokio::process::ChildStdout::from_std(said).map_err(io(&script))?;
            let mut said = BufReader::new(said);
            tokio::select! {
                _ = tokio::time::timeout(patience, said.read_line(&mut line)) => {}
                never = relay(&log_path) => match never {},
            }
        }
        if line.trim() == "ready" {
            return Ok(supervisor);
        }
        // Either the script has failed and cleans up, or the timeout is over and it is told to.
        let gave_up = line.is_empty() && began.elapsed() < patience;
        drop(supervisor.end());
        Err(supervisor.failed(&if gave_up {
            "the clusters did not start".to_owned()
        } else {
            format!("the clusters are not ready after {} s", patience.as_secs())
        }))
    }

    /// The error with the end of the log.
    fn failed(&mut self, what: &str) -> RealClustersError {
        let mut text = String::new();
        if let Err(error) = self.log.rewind().and_then(|()| self.log.read_to_string(&mut text)) {
            text = format!("(cannot be read: {error})");
        }
        RealClustersError::Supervisor { what: what.to_owned(), log: last_lines(&text) }
    }

    /// Closes the script's standard input and waits until the teardown is done.
    pub(super) fn end(&mut self) -> Result<(), RealClustersError> {
        drop(self.lifeline.take());
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(self.failed(&format!("the teardown ended with {status}"))),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) => return Err(self.failed("the teardown does not end")),
                Err(source) => return Err(RealClustersError::Io { path: self.dir.clone(), source }),
            }
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.lifeline.is_none() {
            return;
        }
        if let Err(error) = self.end() {
            tracing::warn!(%error, "cannot take the real clusters down");
        }
    }
}

/// Prints the supervisor's log line by line while the clusters start.
async fn relay(log: &Path) -> std::convert::Infallible {
    let mut passed = 0;
    loop {
        tokio::time::sleep(SUPERVISOR_POLL_INTERVAL).await;
        let text = fs::read_to_string(log).unwrap_or_default();
        let Some(end) = text.rfind('\n').filter(|end| *end >= passed) else { continue };
        for line in text[passed..end].lines() {
            tracing::info!("{}", line.trim());
        }
        passed = end + 1;
    }
}

/// Removes leftovers of killed runs in the root folder.
pub(super) async fn sweep(root: &Path) -> Result<(), RealClustersError> {
    // The script as an argument, not as a file that another process may be replacing.
    let output = tokio::process::Command::new("bash")
        .args(["-c", CLUSTERS_SCRIPT, "real-clusters", "sweep"])
        .arg(root)
        .stdin(Stdio::null())
        .output()
        .await
        .map_err(|source| RealClustersError::Io { path: "bash".into(), source })?;
    let log = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !log.is_empty() {
        tracing::info!(%log, "swept");
    }
    if output.status.success() {
        return Ok(());
    }
    Err(RealClustersError::Supervisor { what: "what an earlier run left cannot be taken down".into(), log })
}
