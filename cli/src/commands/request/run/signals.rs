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

/// Hears Ctrl-C, SIGTERM and SIGHUP from its creation on, in place of the end of the process. One that this process was
/// started to ignore, as by `nohup`, stays ignored.
pub(super) struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hang_up: Option<Signal>,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        let ignored = ignored_signals();
        let listen = |kind: SignalKind| {
            if (ignored >> (kind.as_raw_value() - 1)) & 1 == 1 {
                return Ok(None);
            }
            let listening = signal(kind).map(Some);
            listening.map_err(|error| Failure::unavailable(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) -> Caught {
        tokio::select! {
            () = heard(&mut self.interrupt) => Caught::Interrupt,
            () = heard(&mut self.terminate) => Caught::Terminate,
            () = heard(&mut self.hang_up) => Caught::HangUp,
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

async fn heard(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// The signals that this process ignores, a bit each; the lowest is number 1.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
