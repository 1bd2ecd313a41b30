//! A command in the container, with streams that end with its connection.
//!
//! The pipes of `kube` stay open when the connection breaks, and whoever reads or writes them waits forever. Here tasks
//! copy between them and pipes that close.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachedProcess, TerminalSize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, copy, duplex};
use tokio::task::{JoinHandle, JoinSet};

use crate::failure::Failure;

/// Buffer of a stream.
pub(super) const STREAM_BUFFER: usize = 256 << 10;

/// A running command. It is left alone when this value goes: its input ends.
pub(super) struct Exec {
    pub(super) stdin: Option<DuplexStream>,
    pub(super) stdout: Option<DuplexStream>,
    pub(super) stderr: Option<DuplexStream>,
    pub(super) sizes: Option<futures::channel::mpsc::Sender<TerminalSize>>,
    end: JoinHandle<Option<Status>>,
}

impl Exec {
    pub(super) fn new(mut process: AttachedProcess) -> Self {
        let mut outputs = JoinSet::new();
        let mut inputs = JoinSet::new();
        let stdout = process.stdout().map(|from| output(from, &mut outputs));
        let stderr = process.stderr().map(|from| output(from, &mut outputs));
        let stdin = process.stdin().map(|mut to| {
            let (ours, mut theirs) = duplex(STREAM_BUFFER);
            inputs.spawn(async move {
                _ = copy(&mut theirs, &mut to).await;
                _ = to.shutdown().await;
            });
            ours
        });
        let sizes = process.terminal_size();
        let status = process.take_status();
        let end = tokio::spawn(async move {
            let status = match status {
                Some(status) => status.await,
                None => None,
            };
            // Without a status the connection broke, and no output ends by itself.
            if status.is_none() {
                outputs.abort_all();
            }
            inputs.abort_all();
            while outputs.join_next().await.is_some() {}
            drop(process);
            status
        });
        Self { stdin, stdout, stderr, sizes, end }
    }

    /// The exit code, once the command has ended and its output was read.
    ///
    /// # Errors
    /// [`Failure`] if the connection broke before, or the command did not start.
    pub(super) async fn code(&mut self) -> Result<i32, Failure> {
        let Ok(Some(status)) = (&mut self.end).await else {
            return Err(Failure::unavailable("the connection to the container was cut"));
        };
        if status.status.as_deref() == Some("Success") {
            return Ok(0);
        }
        let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
        let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
        code.and_then(|cause| cause.message.as_deref()?.parse().ok()).ok_or_else(|| {
            let why = status.message.unwrap_or_default();
            Failure::refused("step-failed", format!("the container ran no command: {why}"))
        })
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.end.abort();
    }
}

fn output(mut from: impl AsyncRead + Send + Unpin + 'static, tasks: &mut JoinSet<()>) -> DuplexStream {
    let (ours, mut theirs) = duplex(STREAM_BUFFER);
    tasks.spawn(async move {
        _ = copy(&mut from, &mut theirs).await;
        // Somebody who reads no more does not hold up the other streams.
        _ = copy(&mut from, &mut tokio::io::sink()).await;
    });
    ours
}

/// The beginning of a stream as text; the rest is read and dropped.
pub(super) async fn beginning(stream: Option<DuplexStream>, most: u64) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let mut text = Vec::new();
    _ = (&mut stream).take(most).read_to_end(&mut text).await;
    _ = copy(&mut stream, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&text).into_owned()
}
