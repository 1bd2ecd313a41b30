//! Limits the processor time that one caller's reads take of this broker's async threads.
//!
//! A caller may use a quarter of one core, after some time that it has saved up. Its further reads begin later, so that
//! the commands of others find a free thread. What a read will take is not known when it begins: it reserves as much as
//! the caller's reads took lately, and the difference is settled at its end. Other answers, such as refusals, are
//! charged to the same share.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comity_runtime::clock::Clock;
use rustix::time::{ClockId, clock_gettime};

/// Time that passes for each unit of processor time that a caller uses: the inverse of its share of one core.
pub(crate) const TIME_PER_USE: u32 = 4;
/// Processor time that a quiet caller saves up: thousands of short reads.
pub(crate) const SAVED_USE: Duration = Duration::from_millis(500);
/// Weight of earlier reads in what the next one reserves, against one for the latest.
const EARLIER_WEIGHT: u32 = 7;
/// Callers with all of their time are dropped once there are this many callers.
const PACED_BEFORE_TIDYING: usize = 256;

/// Reads the processor time of the calling thread. Tests put a clock of their own in its place.
pub type ThreadTime = fn(&dyn Clock) -> Duration;

/// Processor time that the kernel has counted for this thread, which waiting and other threads do not prolong.
#[must_use]
pub fn kernel_thread_time(_: &dyn Clock) -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// What one caller has used.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    /// When all of its time will be back, as time since the clock's start.
    back_at: Duration,
    /// Processor time that its reads took lately.
    usual: Duration,
}

/// The time of all callers, by key. Clones share it.
#[derive(Debug, Clone)]
pub struct CallPace<K> {
    clock: Arc<dyn Clock>,
    thread_time: ThreadTime,
    used: Arc<Mutex<BTreeMap<K, Used>>>,
}

impl<K: Ord + Clone> CallPace<K> {
    /// Nobody has used any.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, thread_time: ThreadTime) -> Self {
        Self { clock, thread_time, used: Arc::default() }
    }

    /// Runs a read once its caller has time for it, and charges the processor time that it takes of the threads that
    /// poll it.
    pub async fn run<F: Future>(&self, key: K, read: F) -> F::Output {
        let (reserved, wait) = self.reserve(key.clone());
        let mut charge = Charge { pace: self, key, reserved, busy: None };
        if !wait.is_zero() {
            self.clock.sleep(wait).await;
        }
        self.measure(read, &mut charge.busy).await
    }

    /// Runs a call that does not wait for its caller's time; returns the processor time that it took.
    pub async fn run_now<F: Future>(&self, call: F) -> (F::Output, Duration) {
        let mut busy = None;
        let done = self.measure(call, &mut busy).await;
        (done, busy.unwrap_or_default())
    }

    async fn measure<F: Future>(&self, call: F, busy: &mut Option<Duration>) -> F::Output {
        let mut call = pin!(call);
        poll_fn(|context| {
            // One poll is on one thread.
            let began = (self.thread_time)(&*self.clock);
            let polled = call.as_mut().poll(context);
            let took = (self.thread_time)(&*self.clock).saturating_sub(began);
            *busy = Some(busy.unwrap_or_default() + took);
            polled
        })
        .await
    }

    /// Charges a caller for an answer; returns how long the answer is to be held back.
    #[must_use]
    pub fn charge(&self, key: K, takes: Duration) -> Duration {
        let now = self.clock.elapsed();
        let mut used = self.lock();
        let used = Self::entry(&mut used, key, now);
        used.back_at = used.back_at.max(now) + takes * TIME_PER_USE;
        used.back_at.saturating_sub(now + SAVED_USE * TIME_PER_USE)
    }

    /// Reserves time for a read; returns how much, and how long the read must wait for it.
    fn reserve(&self, key: K) -> (Duration, Duration) {
        let now = self.clock.elapsed();
        let mut used = self.lock();
        let used = Self::entry(&mut used, key, now);
        let wait = used.back_at.saturating_sub(now + SAVED_USE * TIME_PER_USE);
        used.back_at = used.back_at.max(now) + used.usual * TIME_PER_USE;
        (used.usual, wait)
    }

    fn entry(all: &mut BTreeMap<K, Used>, key: K, now: Duration) -> &mut Used {
        if all.len() >= PACED_BEFORE_TIDYING {
            all.retain(|_, used| used.back_at > now);
        }
        all.entry(key).or_default()
    }

    /// Replaces what a read reserved by what it took: nothing where it never began.
    fn settle(&self, key: &K, reserved: Duration, took: Option<Duration>) {
        let mut used = self.lock();
        // Dropped only after all of its time was back.
        let Some(used) = used.get_mut(key) else { return };
        used.back_at += took.unwrap_or_default() * TIME_PER_USE;
        used.back_at = used.back_at.saturating_sub(reserved * TIME_PER_USE);
        if let Some(took) = took {
            used.usual = (used.usual * EARLIER_WEIGHT + took) / (EARLIER_WEIGHT + 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Used>> {
        // Each change is one entry, so a panic elsewhere leaves nothing half done.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a read reserved and has taken; settled at its end, also where its client stops waiting.
struct Charge<'p, K: Ord + Clone> {
    pace: &'p CallPace<K>,
    key: K,
    reserved: Duration,
    /// `None` until it begins.
    busy: Option<Duration>,
}

impl<K: Ord + Clone> Drop for Charge<'_, K> {
    fn drop(&mut self) {
        self.pace.settle(&self.key, self.reserved, self.busy);
    }
}

#[cfg(test)]
mod tests {
    use comity_runtime::clock::ManualClock;
    use futures::FutureExt as _;

    use super::*;

    const READ: Duration = Duration::from_millis(10);

    fn pace() -> (CallPace<&'static str>, ManualClock) {
        let clock = ManualClock::at_unix_ms(0);
        (CallPace::new(Arc::new(clock.clone()), |clock| clock.elapsed()), clock)
    }

    /// Runs a read that keeps a thread busy for [`READ`]; whether it had to wait.
    fn waits(pace: &CallPace<&'static str>, clock: &ManualClock, caller: &'static str) -> bool {
        let clock = clock.clone();
        pace.run(caller, async move { clock.advance(READ) }).now_or_never().is_none()
    }

    #[test]
    fn a_flood_of_reads_gets_a_quarter_of_one_core_and_others_do_not_wait() {
        let (pace, clock) = pace();
        let mut at_once = 0_u32;
        while !waits(&pace, &clock, "mallory") {
            at_once += 1;
            assert!(READ * at_once < SAVED_USE * 2, "{at_once} reads of a flood ran at once");
        }
        assert!(READ * at_once >= SAVED_USE, "only {at_once} reads ran at once");
        assert!(!waits(&pace, &clock, "alice"));
        // From now on each read waits for its time.
        let began = clock.elapsed();
        let mut done = 0_u32;
        while done < 20 {
            clock.advance(READ / 10);
            done += u32::from(!waits(&pace, &clock, "mallory"));
        }
        let passed = clock.elapsed() - began;
        assert!(READ * done * 3 < passed, "{done} reads in {passed:?}");
    }

    #[test]
    fn the_kernel_counts_work_and_not_waiting() {
        let clock = ManualClock::at_unix_ms(0);
        let took = |work: &dyn Fn()| {
            let began = kernel_thread_time(&clock);
            work();
            kernel_thread_time(&clock) - began
        };
        let waited = took(&|| std::thread::sleep(Duration::from_millis(100)));
        assert!(waited < Duration::from_millis(50), "{waited:?}");
        let worked = took(&|| {
            let began = kernel_thread_time(&clock);
            while kernel_thread_time(&clock) - began < READ {
                std::hint::spin_loop();
            }
        });
        assert!(worked >= READ, "{worked:?}");
    }

    #[test]
    fn reads_that_wait_begin_one_after_the_other() {
        let (pace, clock) = pace();
        for _ in 0..200 {
            pace.reserve("mallory");
            pace.settle(&"mallory", Duration::ZERO, Some(READ));
        }
        let waits: Vec<Duration> = (0..3).map(|_| pace.reserve("mallory").1).collect();
        let step = |earlier: usize| waits[earlier + 1].saturating_sub(waits[earlier]);
        assert!(step(0) > READ * 3 && step(1) > READ * 3, "{waits:?}");
        clock.advance(Duration::from_secs(60));
        assert_eq!(pace.reserve("mallory").1, Duration::ZERO);
    }

    #[test]
    fn callers_with_all_of_their_time_take_no_memory() {
        let clock = ManualClock::at_unix_ms(0);
        let pace = CallPace::new(Arc::new(clock.clone()), |clock| clock.elapsed());
        for number in 0..PACED_BEFORE_TIDYING {
            pace.reserve(number);
            pace.settle(&number, Duration::ZERO, Some(READ));
        }
        clock.advance(Duration::from_secs(1));
        pace.reserve(PACED_BEFORE_TIDYING);
        assert_eq!(pace.lock().len(), 1);
    }
}
