//! The signals that end a run: they are heard here, and told to the command.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;
use crate::failure::Failure;

/// A signal, as `kill` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caught {
    Interrupt,
    Terminate,
    HangUp,
}

impl Caught {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "INT",
            Self::Terminate => "TERM",
            Self::HangUp => "HUP",
        }
    }

    /// The failure of a run that a signal ended before its command did.
    pub(super) fn failure(self) -> Failure {
        Failure::new(Exit::Interrupted, "interrupted", format!("stopped by SIG{}", self.name()))
    }
}

/// Hears Ctrl-C, SIGTERM and SIGHUP from its creation on, in place of the end of the process.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::unavailable(format!("cannot listen for signals: {error}")));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) -> Caught {
        tokio::select! {
            _ = self.interrupt.recv() => Caught::Interrupt,
            _ = self.terminate.recv() => Caught::Terminate,
            _ = self.hang_up.recv() => Caught::HangUp,
        }
    }

    /// Runs `work` until it ends or a signal comes.
    pub(super) async fn run_until<T>(&mut self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = work => done,
            caught = self.next() => Err(caught.failure()),
        }
    }
}
