//! Runs kubectl.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// Limit against hanging; kubectl commands that wait have their own timeouts.
const KUBECTL_TIMEOUT: Duration = Duration::from_secs(120);

/// Why a kubectl command failed.
#[derive(Debug, thiserror::Error)]
pub enum KubectlError {
    /// It could not run, or did not end.
    #[error("cannot run kubectl {command}: {source}")]
    Run {
        /// The arguments.
        command: String,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// It ended with an error.
    #[error("kubectl {command} ended with {status}: {stderr}")]
    Failed {
        /// The arguments.
        command: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// Its standard error.
        stderr: String,
    },
}

/// Runs a prepared kubectl command with `input` on its standard input; returns its standard output.
pub(crate) async fn run(mut command: Command, args: &[&str], input: &str) -> Result<String, KubectlError> {
    let shown = args.join(" ");
    let failed = |source| KubectlError::Run { command: shown.clone(), source };
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    let mut stdin = child.stdin.take();
    let talk = async {
        if let Some(mut stdin) = stdin.take() {
            // A kubectl that does not read its input has already ended with an error of its own.
            drop(stdin.write_all(input.as_bytes()).await);
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(KUBECTL_TIMEOUT, talk)
        .await
        .unwrap_or_else(|_| Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "no end after 120 s")))
        .map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(KubectlError::Failed { command: shown, status: output.status, stderr })
}
