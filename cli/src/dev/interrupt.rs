//! Ctrl-C: once to stop, twice to stop at once. Either way nothing is left behind.

use std::path::PathBuf;

use comity_runtime::Shutdown;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// What a shell reports for SIGINT.
const INTERRUPTED: i32 = 130;

/// Whether to stop.
#[derive(Clone, Debug)]
pub(super) struct Interrupt(Shutdown);

impl Interrupt {
    /// Listens to SIGINT and SIGTERM from now on. The second one removes `remove` and ends the process.
    pub(super) fn listen(remove: Option<PathBuf>) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::unavailable(format!("cannot listen to signals: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let shutdown = Shutdown::new();
        let trigger = shutdown.clone();
        tokio::spawn(async move {
            for _ in 0..2 {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if trigger.is_triggered() {
                    if let Some(path) = &remove {
                        let _ = std::fs::remove_dir_all(path);
                    }
                    std::process::exit(INTERRUPTED);
                }
                trigger.trigger();
            }
        });
        Ok(Self(shutdown))
    }

    /// The work's outcome, unless it is time to stop before.
    pub(super) async fn or<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            outcome = work => outcome,
            () = self.triggered() => Err(Failure::refused("interrupted", "interrupted before the story was over")),
        }
    }

    /// Ends when it is time to stop.
    pub(super) async fn triggered(&self) {
        self.0.triggered().await;
    }
}
