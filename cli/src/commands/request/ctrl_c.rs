//! Ends a wait on Ctrl-C, and says what becomes of the request.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;
use crate::failure::Failure;

/// Hears Ctrl-C from its creation on, in place of the end of the process.
pub(super) struct CtrlC(Signal);

impl CtrlC {
    /// Starts to listen.
    pub(super) fn listen() -> Result<Self, Failure> {
        let listening = signal(SignalKind::interrupt());
        listening.map(Self).map_err(|error| Failure::unavailable(format!("cannot listen for signals: {error}")))
    }

    /// Runs `work` until it ends or Ctrl-C.
    ///
    /// # Errors
    /// [`Failure`] of the work, or `interrupted`.
    pub(super) async fn run_until<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
        interrupted: impl FnOnce() -> Failure,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = work => done,
            _ = self.0.recv() => Err(interrupted()),
        }
    }
}

/// Ctrl-C while a request is followed.
pub(super) fn stopped_waiting(id: &str) -> Failure {
    Failure::new(Exit::Interrupted, "interrupted", format!("stopped waiting; {id} continues"))
        .remedy(format!("watch it with 'comity request watch {id}', or cancel it with 'comity request cancel {id}'"))
}

/// Ctrl-C while a request is submitted.
pub(super) fn stopped_submitting(key: &str) -> Failure {
    Failure::new(Exit::Interrupted, "interrupted", "stopped before the broker answered; it may have the request")
        .remedy(format!("see 'comity request list'; to submit it once in any case, add --idempotency-key {key}"))
}
