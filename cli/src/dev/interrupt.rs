//! Handles Ctrl-C: once to stop in order, twice to stop at once. Both remove the temporary directory.

use std::path::PathBuf;

use comity_runtime::Shutdown;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;
use crate::failure::Failure;

/// Tells when to stop.
#[derive(Clone, Debug)]
pub(super) struct Interrupt(Shutdown);

impl Interrupt {
    /// Listens for SIGINT and SIGTERM. The second signal removes the directory `remove` and exits the process.
    pub(super) fn listen(remove: Option<PathBuf>) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::unavailable(format!("cannot listen for signals: {error}"));
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
                    std::process::exit(i32::from(Exit::Interrupted.number()));
                }
                trigger.trigger();
            }
        });
        Ok(Self(shutdown))
    }

    /// Runs `work` until it ends or the first signal arrives.
    ///
    /// # Errors
    /// [`Failure`] of the work, or `interrupted`.
    pub(super) async fn run_until<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            outcome = work => outcome,
            () = self.triggered() => Err(Failure::refused("interrupted", "interrupted before the demonstration ended")),
        }
    }

    /// Waits for the first signal.
    pub(super) async fn triggered(&self) {
        self.0.triggered().await;
    }
}
