//! Monitors writes of the log: pending writes, their duration, and the first failure.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{Histogram, HistogramOpts};

use crate::storage::storage_error::StorageError;

/// From a tenth of a millisecond, a good disk, to ten seconds, a disk that hangs.
const BUCKETS: [f64; 13] = [0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0];

/// Shared by the log, its pending writes and their observers.
#[derive(Clone)]
pub(crate) struct DiskWatch {
    shared: Arc<DiskWatchInner>,
}

struct DiskWatchInner {
    dir: PathBuf,
    seconds: Histogram,
    state: Mutex<State>,
    #[cfg(test)]
    stalled: std::sync::atomic::AtomicBool,
}

#[derive(Default)]
struct State {
    next: u64,
    /// When each write that is not on disk yet began.
    pending: BTreeMap<u64, Instant>,
    fault: Option<String>,
}

impl DiskWatch {
    pub(in crate::storage) fn new(dir: PathBuf) -> Self {
        let options = HistogramOpts::new("log_sync_seconds", "From the write of log entries or a vote to its fsync.");
        let seconds = Histogram::with_opts(options.buckets(BUCKETS.to_vec())).expect("a valid histogram");
        let shared = DiskWatchInner {
            dir,
            seconds,
            state: Mutex::default(),
            #[cfg(test)]
            stalled: std::sync::atomic::AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write begins.
    pub(in crate::storage) fn begin(&self) -> PendingWrite {
        let mut state = self.state();
        let number = state.next;
        state.next = state.next.wrapping_add(1);
        let began = Instant::now();
        state.pending.insert(number, began);
        PendingWrite { disk: self.clone(), number, began }
    }

    /// Records a failure; the first one explains the others.
    pub(in crate::storage) fn failed(&self, error: &io::Error) {
        let sentence = StorageError::of_io(&self.shared.dir, error).to_string();
        self.state().fault.get_or_insert(sentence);
    }

    /// Error and remedy of the first failed write.
    pub(crate) fn fault(&self) -> Option<String> {
        self.state().fault.clone()
    }

    /// Age of the oldest pending write.
    pub(crate) fn stalled_for(&self) -> Duration {
        self.state().pending.first_key_value().map_or(Duration::ZERO, |(_, began)| began.elapsed())
    }

    /// Histogram of write times.
    pub(crate) fn seconds(&self) -> Histogram {
        self.shared.seconds.clone()
    }

    /// Blocks writes, like a hanging disk.
    #[cfg(test)]
    pub(crate) fn stall(&self) {
        self.shared.stalled.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Lets writes pass again.
    #[cfg(test)]
    pub(crate) fn resume(&self) {
        self.shared.stalled.store(false, std::sync::atomic::Ordering::SeqCst);
    }
}

/// A write on its way to disk.
pub(in crate::storage) struct PendingWrite {
    disk: DiskWatch,
    number: u64,
    began: Instant,
}

impl PendingWrite {
    /// Ends the write with its result; runs on the log's writer thread.
    pub(in crate::storage) fn end(self, result: &io::Result<()>) {
        #[cfg(test)]
        while self.disk.shared.stalled.load(std::sync::atomic::Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        match result {
            Ok(()) => self.disk.shared.seconds.observe(self.began.elapsed().as_secs_f64()),
            Err(error) => self.disk.failed(error),
        }
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        self.disk.state().pending.remove(&self.number);
    }
}
