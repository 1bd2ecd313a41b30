//! Stops a gateway that may have been replaced, before its successor starts.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use comity_agent_model::boot_time::BootTime;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// No deadline.
const NO_DEADLINE: u64 = u64::MAX;
/// Longest wait for a deadline without a look at the time: timers stand still while the machine is suspended.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Until when an agent may send and accept packets, speak to brokers and change its cluster. Clones share it.
///
/// The fabric reads it for every batch of packets, and tasks under it read it at every poll, so a process that was
/// paused does nothing when it runs again, even before the task that renews its Lease does.
#[derive(Clone, Debug)]
pub struct Fence(Arc<Deadline>);

#[derive(Debug)]
struct Deadline {
    /// Since boot; 0: closed.
    nanos: AtomicU64,
    /// Notified when it opens, and when it closes before its deadline.
    changed: Notify,
}

impl Fence {
    /// Without a deadline: the only gateway of its cluster.
    #[must_use]
    pub fn always_open() -> Self {
        Self::with(NO_DEADLINE)
    }

    /// Closed until it is [extended](Self::extend_until).
    #[must_use]
    pub fn closed() -> Self {
        Self::with(0)
    }

    fn with(nanos: u64) -> Self {
        Self(Arc::new(Deadline { nanos: AtomicU64::new(nanos), changed: Notify::new() }))
    }

    /// Sets the deadline.
    pub fn extend_until(&self, deadline: BootTime) {
        let was_open = self.is_open();
        self.0.nanos.store(nanos(deadline), Ordering::Release);
        if !was_open {
            self.0.changed.notify_waiters();
        }
    }

    /// Closes it at once.
    pub fn close(&self) {
        self.0.nanos.store(0, Ordering::Release);
        self.0.changed.notify_waiters();
    }

    /// Whether the deadline is in the future.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match self.0.nanos.load(Ordering::Acquire) {
            NO_DEADLINE => true,
            0 => false,
            deadline => nanos(BootTime::now()) < deadline,
        }
    }

    /// Waits until it is open.
    pub async fn opened(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.is_open() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until it is not open.
    pub async fn shut(&self) {
        loop {
            let changed = self.0.changed.notified();
            match self.0.nanos.load(Ordering::Acquire) {
                NO_DEADLINE => changed.await,
                deadline => {
                    let left = deadline.saturating_sub(nanos(BootTime::now()));
                    if left == 0 {
                        return;
                    }
                    let pause = Duration::from_nanos(left).min(CHECK_INTERVAL);
                    // Late or notified: both ask for another look.
                    let _ = tokio::time::timeout(pause, changed).await;
                }
            }
        }
    }

    /// Works until the fence closes; `None` if it closed before the work was done, which is then dropped.
    pub async fn while_open<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (mut shut, mut work) = (pin!(self.shut()), pin!(work));
        poll_fn(|context| {
            if !self.is_open() || shut.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await
    }

    /// Runs a task that stands still while the fence is closed. `stop`, which the task must obey too, ends it there.
    pub async fn hold(self, stop: CancellationToken, task: impl Future<Output = ()>) {
        let mut task = pin!(task);
        while self.while_open(task.as_mut()).await.is_none() {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.opened() => {}
            }
        }
    }
}

/// Less than [`NO_DEADLINE`].
fn nanos(time: BootTime) -> u64 {
    u64::try_from(time.since_boot().as_nanos()).unwrap_or(NO_DEADLINE).min(NO_DEADLINE - 1)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Longer than any pause of a test machine.
    const LONG: Duration = Duration::from_secs(600);

    fn open() -> Fence {
        let fence = Fence::closed();
        fence.extend_until(BootTime::now() + LONG);
        fence
    }

    #[test]
    fn it_closes_at_its_deadline_and_opens_when_extended() {
        let fence = Fence::closed();
        assert!(!fence.is_open());
        fence.extend_until(BootTime::now() + LONG);
        assert!(fence.is_open());
        fence.extend_until(BootTime::now());
        assert!(!fence.is_open());
        fence.extend_until(BootTime::now() + LONG);
        fence.close();
        assert!(!fence.is_open());
        assert!(Fence::always_open().is_open());
    }

    #[tokio::test]
    async fn work_ends_when_the_fence_closes_or_reaches_its_deadline() {
        assert_eq!(open().while_open(async { 7 }).await, Some(7));
        assert_eq!(Fence::always_open().while_open(async { 7 }).await, Some(7));
        assert_eq!(Fence::closed().while_open(async { 7 }).await, None, "not even the first poll");

        let fence = open();
        let closing = fence.clone();
        let close = async move {
            tokio::task::yield_now().await;
            closing.close();
        };
        let (ended, ()) = tokio::join!(fence.while_open(std::future::pending::<()>()), close);
        assert_eq!(ended, None);

        let fence = Fence::closed();
        fence.extend_until(BootTime::now() + Duration::from_millis(50));
        let ended = fence.while_open(std::future::pending::<()>());
        assert_eq!(tokio::time::timeout(LONG, ended).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_held_task_stands_still_until_the_fence_opens_again() {
        let (fence, stop, polls) = (open(), CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let (seen, again) = (Arc::clone(&polls), Arc::new(Notify::new()));
        let (wake, end) = (Arc::clone(&again), stop.clone());
        let work = async move {
            loop {
                seen.fetch_add(1, Ordering::SeqCst);
                tokio::select! {
                    () = end.cancelled() => return,
                    () = wake.notified() => {}
                }
            }
        };
        let task = tokio::spawn(fence.clone().hold(stop.clone(), work));
        let reached = async |rounds: usize| {
            while polls.load(Ordering::SeqCst) < rounds {
                tokio::task::yield_now().await;
            }
        };
        reached(1).await;
        fence.close();
        again.notify_one();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(polls.load(Ordering::SeqCst), 1, "it works behind a closed fence");
        fence.extend_until(BootTime::now() + LONG);
        reached(2).await;
        fence.close();
        stop.cancel();
        tokio::time::timeout(LONG, task).await.unwrap().unwrap();
    }
}
