//! Graceful shutdown: the first signal starts it, a second one exits at once.
//!
//! Long tasks end when [`Shutdown::token`] is cancelled. [`Shutdown::drain`] waits, up to a limit, for the tasks of
//! [`Shutdown::spawn`].

use std::future::Future;
use std::io;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

/// Exit codes after a signal are 128 plus its number, as in a shell.
const SIGINT_EXIT: i32 = 130;
const SIGTERM_EXIT: i32 = 143;

/// Whether all tasks ended in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Drained {
    /// All tasks ended.
    Complete,
    /// Some tasks still run after the limit.
    TimedOut {
        /// Number of running tasks.
        remaining: usize,
    },
}

/// The stop signal of a process, or of one broker or agent among several in a process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    tasks: TaskTracker,
}

impl Shutdown {
    /// A stop signal that is not triggered.
    pub fn new() -> Self {
        Self::default()
    }

    /// A stop signal for a part of the process. Triggering the parent triggers it too, but not the reverse.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { token: self.token.child_token(), tasks: TaskTracker::new() }
    }

    /// A token that [`trigger`](Self::trigger) cancels.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Starts the shutdown. Further calls do nothing.
    pub fn trigger(&self) {
        self.token.cancel();
    }

    /// Whether the shutdown has started.
    pub fn is_triggered(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until the shutdown starts.
    pub async fn triggered(&self) {
        self.token.cancelled().await;
    }

    /// Runs a task that [`drain`](Self::drain) waits for.
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tasks.spawn(task)
    }

    /// Starts the shutdown and waits at most `limit` for the tasks to end.
    pub async fn drain(&self, limit: Duration) -> Drained {
        self.trigger();
        self.tasks.close();
        match tokio::time::timeout(limit, self.tasks.wait()).await {
            Ok(()) => Drained::Complete,
            Err(_) => Drained::TimedOut { remaining: self.tasks.len() },
        }
    }

    /// Handles SIGINT and SIGTERM: the first signal triggers, the second exits the process. Call it once, in `main`,
    /// within the tokio runtime.
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub fn listen_for_signals(&self) -> io::Result<()> {
        let interrupt = exit_codes(signal(SignalKind::interrupt())?, SIGINT_EXIT);
        let terminate = exit_codes(signal(SignalKind::terminate())?, SIGTERM_EXIT);
        let signals = Box::pin(futures::stream::select(interrupt, terminate));
        tokio::spawn(self.clone().handle_signals(signals, |code| std::process::exit(code)));
        Ok(())
    }

    async fn handle_signals(self, mut signals: impl Stream<Item = i32> + Unpin, exit: impl FnOnce(i32)) {
        if let Some(code) = signals.next().await {
            info!(signal = code - 128, "stopping; a second signal stops at once");
            self.trigger();
        }
        if let Some(code) = signals.next().await {
            warn!(signal = code - 128, "stopping at once");
            exit(code);
        }
    }
}

/// Yields `code` each time the signal arrives.
fn exit_codes(signal: Signal, code: i32) -> impl Stream<Item = i32> + Send {
    futures::stream::unfold(signal, move |mut signal| async move { signal.recv().await.map(|()| (code, signal)) })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tokio::sync::{mpsc, oneshot};
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn first_signal_triggers_second_exits() {
        let shutdown = Shutdown::new();
        let (signals, stream) = mpsc::channel(2);
        let (exited, exit) = oneshot::channel();
        tokio::spawn(shutdown.clone().handle_signals(ReceiverStream::new(stream), |code| {
            exited.send(code).unwrap();
        }));
        assert!(!shutdown.is_triggered());
        signals.send(SIGTERM_EXIT).await.unwrap();
        tokio::time::timeout(SOON, shutdown.triggered()).await.unwrap();
        signals.send(SIGINT_EXIT).await.unwrap();
        assert_eq!(tokio::time::timeout(SOON, exit).await.unwrap().unwrap(), SIGINT_EXIT);
    }

    #[tokio::test]
    async fn a_real_sigterm_triggers() {
        let shutdown = Shutdown::new();
        shutdown.listen_for_signals().unwrap();
        let pid = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        tokio::time::timeout(SOON, shutdown.triggered()).await.unwrap();
    }

    #[tokio::test]
    async fn drain_waits_for_tasks_and_counts_the_stuck() {
        let shutdown = Shutdown::new();
        let token = shutdown.token();
        let task = shutdown.spawn(async move {
            token.cancelled().await;
            7
        });
        assert_eq!(shutdown.drain(SOON).await, Drained::Complete);
        assert_eq!(task.await.unwrap(), 7);

        let stuck = Shutdown::new();
        stuck.spawn(std::future::pending::<()>());
        let drained = stuck.drain(Duration::from_millis(20)).await;
        assert_eq!(drained, Drained::TimedOut { remaining: 1 });
    }

    #[tokio::test]
    async fn a_child_stops_alone_or_with_its_parent() {
        let parent = Shutdown::new();
        let (one, two) = (parent.child(), parent.child());
        one.trigger();
        assert!(one.is_triggered() && !two.is_triggered() && !parent.is_triggered());
        parent.trigger();
        assert!(two.is_triggered());
    }
}
