//! Stopping: one signal stops gracefully, a second one at once.
//!
//! Every long task holds [`Shutdown::token`] and ends when it is cancelled; tasks that must finish
//! are spawned by [`Shutdown::spawn`] and waited for, up to a limit, by [`Shutdown::drain`].

use std::future::Future;
use std::io;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

/// What a shell reports for SIGINT and SIGTERM is 128 plus the number.
const SIGINT_EXIT: i32 = 130;
const SIGTERM_EXIT: i32 = 143;

/// Whether all tasks ended in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Drained {
    /// All of them.
    Complete,
    /// The limit passed first.
    TimedOut {
        /// How many still run.
        remaining: usize,
    },
}

/// The stop signal of one process (or of one broker or agent in a process of several). Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    tasks: TaskTracker,
}

impl Shutdown {
    /// Not triggered.
    pub fn new() -> Self {
        Self::default()
    }

    /// A stop signal of its own that this one triggers too: a part that can be stopped alone.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { token: self.token.child_token(), tasks: TaskTracker::new() }
    }

    /// Cancelled when it is time to stop.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Begins to stop. Calling it again does nothing.
    pub fn trigger(&self) {
        self.token.cancel();
    }

    /// Whether it is time to stop.
    pub fn is_triggered(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Ends when it is time to stop.
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

    /// Begins to stop, and waits until the tasks have ended, at most `limit`.
    pub async fn drain(&self, limit: Duration) -> Drained {
        self.trigger();
        self.tasks.close();
        match tokio::time::timeout(limit, self.tasks.wait()).await {
            Ok(()) => Drained::Complete,
            Err(_) => Drained::TimedOut { remaining: self.tasks.len() },
        }
    }

    /// Listens to SIGINT and SIGTERM from now on: the first triggers, the second exits the process.
    /// Called once, in `main`, inside the runtime.
    ///
    /// # Errors
    /// Where the handlers cannot be installed.
    pub fn listen_for_signals(&self) -> io::Result<()> {
        let interrupt = codes(signal(SignalKind::interrupt())?, SIGINT_EXIT);
        let terminate = codes(signal(SignalKind::terminate())?, SIGTERM_EXIT);
        let signals = Box::pin(futures::stream::select(interrupt, terminate));
        tokio::spawn(self.clone().obey(signals, |code| std::process::exit(code)));
        Ok(())
    }

    async fn obey(self, mut signals: impl Stream<Item = i32> + Unpin, exit: impl FnOnce(i32)) {
        if let Some(code) = signals.next().await {
            info!(signal = code - 128, "stopping; once more to stop at once");
            self.trigger();
        }
        if let Some(code) = signals.next().await {
            warn!(signal = code - 128, "stopping at once");
            exit(code);
        }
    }
}

/// An exit code for each time the signal comes.
fn codes(signal: Signal, code: i32) -> impl Stream<Item = i32> + Send {
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
        tokio::spawn(shutdown.clone().obey(ReceiverStream::new(stream), |code| {
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
    async fn a_child_stops_alone_and_with_its_parent() {
        let parent = Shutdown::new();
        let (one, two) = (parent.child(), parent.child());
        one.trigger();
        assert!(one.is_triggered() && !two.is_triggered() && !parent.is_triggered());
        parent.trigger();
        assert!(two.is_triggered());
    }
}
