//! Closes connections that nobody uses: silent ones, idle ones, and those whose peer reads nothing.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use crate::tls::open_calls::{OpenCalls, Usage};

/// How long connections of one kind may stay unused.
#[derive(Debug, Clone, Copy)]
pub struct IdleLimits {
    /// From the handshake to the first call.
    pub first_call: Duration,
    /// From the end of a call to the next one.
    pub between_calls: Duration,
    /// While the peer does not read what it is sent.
    pub unread: Duration,
    /// Altogether, with or without calls; `None` without such a limit.
    pub age: Option<Duration>,
}

/// Why a connection must close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overdue {
    /// No call is in progress.
    Idle,
    /// The peer reads nothing, or the connection is too old.
    Cut,
}

/// Ways to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// Into the buffer of the TLS session, which has room until it is full.
    Buffer,
    /// Everything to the peer.
    Flush,
}

/// The deadline of one connection.
#[derive(Debug)]
pub(super) struct IdleTimer {
    limits: IdleLimits,
    calls: OpenCalls,
    accepted: Instant,
    /// The write that waits for the peer, and since when.
    unread: Option<(Write, Instant)>,
    sleep: Pin<Box<Sleep>>,
    overdue: Option<Overdue>,
}

impl IdleTimer {
    pub(super) fn new(limits: IdleLimits, calls: OpenCalls) -> Self {
        let accepted = Instant::now();
        // Over at the first look, which sets the deadline.
        let sleep = Box::pin(tokio::time::sleep_until(accepted));
        Self { limits, calls, accepted, unread: None, sleep, overdue: None }
    }

    /// Whether the connection must close. If not, the task wakes when that may change.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Option<Overdue> {
        while self.overdue.is_none() && self.sleep.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let (deadline, overdue) = self.deadline(now);
            if deadline <= now {
                self.overdue = Some(overdue);
            } else {
                self.sleep.as_mut().reset(deadline);
            }
        }
        self.overdue
    }

    /// Notes whether a write waits for the peer.
    pub(super) fn note_write<T>(&mut self, write: Write, written: &Poll<T>) {
        match (self.unread, written.is_ready()) {
            // The buffer may have room although the peer reads nothing.
            (Some((Write::Flush, _)), true) if write == Write::Buffer => {}
            (_, true) => self.unread = None,
            (Some((_, since)), false) => self.unread = Some((write, since)),
            (None, false) => {
                let now = Instant::now();
                self.unread = Some((write, now));
                let deadline = self.sleep.deadline().min(now + self.limits.unread);
                self.sleep.as_mut().reset(deadline);
            }
        }
    }

    /// The next time at which the connection may have to close.
    fn deadline(&self, now: Instant) -> (Instant, Overdue) {
        let IdleLimits { first_call, between_calls, unread, age } = self.limits;
        let idle = match self.calls.usage() {
            Usage::Unused => self.accepted + first_call,
            // Were the calls to end now, it would be idle that long at the earliest.
            Usage::Busy => now + between_calls,
            Usage::IdleSince(end) => end + between_calls,
        };
        let unread = self.unread.map(|(_, since)| since + unread);
        let old = age.map(|age| self.accepted + age);
        let cut = unread.into_iter().chain(old).min();
        match cut {
            Some(cut) if cut < idle => (cut, Overdue::Cut),
            _ => (idle, Overdue::Idle),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    const LIMITS: IdleLimits = IdleLimits {
        first_call: Duration::from_secs(2),
        between_calls: Duration::from_secs(10),
        unread: Duration::from_secs(5),
        age: Some(Duration::from_secs(60)),
    };

    /// Seconds until the connection must close.
    async fn closes(timer: &mut IdleTimer, began: Instant) -> (u64, Overdue) {
        let overdue = poll_fn(|cx| timer.poll_overdue(cx).map_or(Poll::Pending, Poll::Ready)).await;
        (began.elapsed().as_secs(), overdue)
    }

    async fn pass(timer: &mut IdleTimer, seconds: u64) {
        let began = Instant::now();
        let closed = tokio::time::timeout(Duration::from_secs(seconds), closes(timer, began)).await;
        assert!(closed.is_err(), "{closed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_closes_without_a_first_call_and_between_calls() {
        let (calls, began) = (OpenCalls::default(), Instant::now());
        let mut timer = IdleTimer::new(LIMITS, calls.clone());
        assert_eq!(closes(&mut timer, began).await, (2, Overdue::Idle));

        let began = Instant::now();
        let mut timer = IdleTimer::new(LIMITS, calls.clone());
        let call = calls.begin();
        pass(&mut timer, 25).await;
        drop(call);
        assert_eq!(closes(&mut timer, began).await, (35, Overdue::Idle));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_do_not_lengthen_the_age() {
        let (calls, began) = (OpenCalls::default(), Instant::now());
        let mut timer = IdleTimer::new(LIMITS, calls.clone());
        let _call = calls.begin();
        assert_eq!(closes(&mut timer, began).await, (60, Overdue::Cut));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_cut_off() {
        let (calls, began) = (OpenCalls::default(), Instant::now());
        let mut timer = IdleTimer::new(LIMITS, calls.clone());
        let _call = calls.begin();
        pass(&mut timer, 20).await;
        for write in [Write::Buffer, Write::Flush] {
            timer.note_write(write, &Poll::<()>::Pending);
            pass(&mut timer, 4).await;
            timer.note_write(write, &Poll::Ready(()));
            pass(&mut timer, 6).await;
        }
        timer.note_write(Write::Flush, &Poll::<()>::Pending);
        pass(&mut timer, 3).await;
        timer.note_write(Write::Buffer, &Poll::Ready(()));
        assert_eq!(closes(&mut timer, began).await, (45, Overdue::Cut));
    }
}
